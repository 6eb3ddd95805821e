// The frame of the page: search, groups, views, theme; and which view the address asks for.
import { html, render, useEffect, useRef, useState, useStore } from "./view.js";
import { address, go, linkTo } from "./address.js";
import { ask, inGroup, learnRights, session } from "./api.js";
import { Access } from "./access.js";
import { Proposals } from "./actions.js";
import { Ask } from "./ask.js";
import { Communities } from "./communities.js";
import { Compare } from "./compare.js";
import { Entity, Episode } from "./entity.js";
import { Explore } from "./explore.js";
import { Ingestion } from "./ingestion.js";
import { Help, listen } from "./keys.js";
import { Empty, Notice } from "./parts.js";

const VIEWS = { explore: Explore, compare: Compare, ask: Ask, communities: Communities, ingestion: Ingestion };
const TITLES = { explore: "Explore", compare: "Compare", ask: "Ask", communities: "Communities", ingestion: "Ingestion" };

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  dispatchEvent(new Event("kgray-theme"));
}
const storedTheme = localStorage.getItem("kgray-theme");
if (storedTheme) theme(storedTheme);
function changeTheme() {
  const isDark = (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  localStorage.setItem("kgray-theme", isDark ? "light" : "dark");
  theme(isDark ? "light" : "dark");
}

function Search({ group, field }) {
  const { q } = useStore(address);
  const [found, setFound] = useState([]);
  const [chosen, setChosen] = useState(-1);
  const asked = useRef(null);
  useEffect(() => {
    if (field.current) field.current.value = q || "";
  }, [q]);
  const close = () => (setFound([]), setChosen(-1));
  const complete = async (event) => {
    const text = event.target.value.trim();
    asked.current?.abort();
    asked.current = new AbortController();
    if (text.length < 1) return close();
    try {
      const answer = await ask(inGroup(group, "complete", { q: text, limit: 8 }), { signal: asked.current.signal });
      setFound(answer.entities);
      setChosen(-1);
    } catch {
      close();
    }
    return null;
  };
  const open = (one) => {
    close();
    field.current.blur();
    go({ view: "explore", centre: one.id, entity: one.id, open: null, community: null, fact: null, q: null });
  };
  const submit = (event) => {
    event.preventDefault();
    if (found[chosen]) return open(found[chosen]);
    close();
    const text = field.current.value.trim();
    go({ view: "explore", q: text || null, fact: null, entity: null });
    return null;
  };
  const walk = (event) => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (way && found.length) {
      event.preventDefault();
      setChosen((chosen + way + found.length + 1) % (found.length + 1));
    } else if (event.key === "Escape") close();
  };
  return html`<form class="search" role="search" onSubmit=${submit}>
    <input ref=${field} type="search" placeholder="Search or find a name" aria-label="Search" autocomplete="off" role="combobox" maxlength="1000"
      aria-expanded=${String(found.length > 0)} aria-controls="completions" aria-activedescendant=${chosen >= 0 && found[chosen] ? `completion-${chosen}` : null}
      onInput=${complete} onKeyDown=${walk} onBlur=${() => setTimeout(close, 200)} />
    <kbd aria-hidden="true">/</kbd>
    <ul id="completions" role="listbox" aria-label="Names" hidden=${!found.length}>${found.map((one, i) => html`<li id=${`completion-${i}`} role="option" aria-selected=${String(i === chosen)}
      onMouseDown=${(event) => (event.preventDefault(), open(one))}><span dir="auto">${one.name}</span>${one.matched !== one.name && html` <small dir="auto">${one.matched}</small>`}<small>${one.facts} facts</small></li>`)}</ul>
  </form>`;
}

function Page() {
  const now = useStore(address);
  const { groups, rights, online, needsKey } = useStore(session);
  const [isAccess, setAccess] = useState(false);
  const [isHelp, setHelp] = useState(false);
  const field = useRef(null);
  const group = now.group || groups?.[0]?.group;
  const view = now.view || "explore";
  useEffect(() => listen({ search: () => field.current?.select(), help: () => setHelp(true) }), []);
  useEffect(() => {
    document.title = `${group ? `${group} · ` : ""}${TITLES[view] || "kgray"}`;
  }, [group, view]);
  const View = VIEWS[view];
  const reachable = groups?.some((one) => one.group === group);
  return html`<div class="frame">
    <a class="skip" href="#content" onClick=${(event) => (event.preventDefault(), document.getElementById("content").focus())}>To the content</a>
    <header class="top">
      <a class="brand" href=${group ? `#group=${encodeURIComponent(group)}` : "#"} aria-label="kgray"><img src="/page/icon.svg" alt="" width="24" height="24" /><b>kgray</b></a>
      ${groups?.length > 0 && html`<label class="group"><span class="visually-hidden">Group</span><select value=${group} onChange=${(event) => go({ ...Object.fromEntries(Object.keys(now).map((name) => [name, null])), group: event.target.value, view: now.view })}>
        ${!reachable && group && html`<option value=${group}>${group}</option>`}${groups.map((one) => html`<option value=${one.group}>${one.group}</option>`)}</select></label>`}
      ${group && html`<${Search} key=${group} group=${group} field=${field} />`}
      <span class="gap"></span>
      <button class="icon" aria-label="Dark or light" title="Dark or light" onClick=${changeTheme}>◐</button>
      <button class="icon" aria-label="Keys" title="Keys (?)" onClick=${() => setHelp(true)}>?</button>
      <button class="small" onClick=${() => setAccess(true)}>Access</button>
    </header>
    <nav aria-label="Views">${Object.entries(TITLES).map(([name, title]) => html`<a href=${linkTo({ view: name === "explore" ? null : name })} aria-current=${view === name ? "page" : null}>${title}</a>`)}</nav>
    ${!online && html`<p class="gone" role="alert">The server is away. The page goes on when it is back.</p>`}
    <main id="content" tabindex="-1" data-view=${view}>
      <h1 class="visually-hidden">${TITLES[view] || "kgray"}${group ? ` in ${group}` : ""}</h1>
      ${needsKey ? html`<${Empty}>A key is needed.</${Empty}>`
        : rights && !rights.scopes.includes("read") ? html`<${Empty}>This key may not read. It may: ${rights.scopes.join(", ")}.</${Empty}>`
        : !groups ? html`<p class="quiet busy">Loading…</p>`
        : !group ? html`<section class="page"><${Empty}>Nothing is remembered yet. <code>kgray add FILE --group NAME</code> adds messages.</${Empty}></section>`
        : view === "entity" && now.entity ? html`<${Entity} key=${now.entity} group=${group} id=${now.entity} />`
        : view === "episode" && now.episode ? html`<${Episode} group=${group} id=${now.episode} />`
        : html`<${View || Explore} key=${group} group=${group} />`}
    </main>
    <${Access} isOpen=${isAccess} onClose=${() => setAccess(false)} />
    ${isHelp && html`<${Help} onClose=${() => setHelp(false)} />`}
    <${Proposals} /><${Notice} />
  </div>`;
}

render(html`<${Page} />`, document.getElementById("page"));
learnRights().catch(() => {});
