// Explore: search, the graph or table of a neighbourhood, and the panel beside it.
import { html, useEffect, useLoaded, useMemo, useRef, useState, useStore } from "./view.js";
import { address, go, linkTo } from "./address.js";
import { ask, inGroup, session } from "./api.js";
import { Drawing, hasWebGL } from "./drawing.js";
import { Busy, Choice, Empty, Fault, tell } from "./parts.js";
import { MOST_NODES, Picture } from "./picture.js";
import { Results } from "./results.js";
import { FactTable } from "./table.js";
import { TimeBar, clock } from "./timebar.js";
import { moment, shownExactly, words } from "./times.js";
import { Why } from "./why.js";
import { Entity } from "./entity.js";
import { savePicture, saveDrawing } from "./export.js";
import { colourOfType } from "./colours.js";

/** What the keyboard reaches of the view that shows. */
export const shownNow = { changes: [], drawing: null };
const OVERVIEW_FROM = 600; // entities: more begin with their communities

/** Load the picture that an address describes. */
async function loadPicture({ group, centre, open, community, known_at, depth, limit, overview, level }, signal) {
  const picture = new Picture();
  const most = Math.min(MOST_NODES, Number(limit) || 200);
  const shared = { known_at, level: level || 0, limit: most, most_facts: Math.min(20_000, most * 10) };
  const graph = (query) => ask(inGroup(group, "graph", { ...shared, ...query }), { signal });
  if (overview) picture.takeOverview(await ask(inGroup(group, "overview", { level: level || 0, limit: 200 }), { signal }));
  else picture.take(await graph(centre ? { centre, depth: depth || 1 } : community ? { community } : {}));
  for (const id of (open || "").split(",").filter(Boolean)) {
    const inside = picture.nodes.get(id)?.kind === "community";
    if (inside) {
      picture.nodes.delete(id);
      for (const [key, edge] of picture.edges) if (edge.source === id || edge.target === id) picture.edges.delete(key);
    }
    const links = overview ? new Map(picture.edges) : null;
    picture.take(await graph(inside ? { community: id } : { centre: id, depth: 1 }));
    if (links) for (const [key, edge] of links) if (edge.count && !picture.edges.has(key)) picture.edges.set(key, edge);
  }
  return picture;
}

async function loadCommits(group, signal) {
  const found = [];
  let since = 0;
  for (let page = 0; page < 20; page += 1) {
    const answer = await ask(inGroup(group, "changes", { since, limit: 1000 }), { signal });
    for (const one of answer.commits) found.push({ at: one.at });
    if (!answer.more) break;
    since = answer.last;
  }
  return found;
}

export function Explore({ group }) {
  const now = useStore(address);
  const { epoch, groups } = useStore(session);
  const entities = groups?.find((one) => one.group === group)?.entities ?? 0;
  const overview = now.overview === "yes" || (!now.centre && !now.community && !now.overview && entities > OVERVIEW_FROM);
  const { data: picture, fault, busy } = useLoaded(
    (signal) => loadPicture({ ...now, group, overview }, signal),
    [group, now.centre, now.open, now.community, now.known_at, now.depth, now.limit, now.level, overview, epoch],
  );
  const { data: commits } = useLoaded((signal) => loadCommits(group, signal), [group, epoch]);
  const changes = useMemo(() => picture?.changes() ?? [], [picture]);
  shownNow.changes = changes;
  useEffect(() => clock.set({ at: moment(now.as_of) }), []);
  const webGL = useMemo(hasWebGL, []);
  const isTable = now.table === "yes" || !webGL;
  const isOpen = Boolean(now.fact || now.entity || now.q);
  const panel = useRef(null);
  const opener = useRef(null);
  // The keyboard follows into the panel, and back to the row that opened it.
  useEffect(() => {
    const { activeElement } = document;
    if (isOpen && activeElement.matches(".stage a:focus-visible")) {
      opener.current = activeElement;
      panel.current.focus();
    } else if (!isOpen) {
      if (activeElement === document.body) opener.current?.focus();
      opener.current = null;
    }
  }, [isOpen]);
  const relations = useMemo(() => (now.relations ? new Set(now.relations.split(",")) : null), [now.relations]);

  return html`<div class="explore" data-past=${now.known_at ? "yes" : null} data-panel=${isOpen ? "yes" : null}>
    <section class="stage" aria-label="Neighbourhood">
      <${Tools} now=${now} picture=${picture} isTable=${isTable} webGL=${webGL} />
      ${now.known_at && html`<p class="past" role="status">A past view: as known ${shownExactly(moment(now.known_at))}. <button class="plain" onClick=${() => go({ known_at: null })}>Back to now</button> <a href=${linkTo({ view: "compare", clock: "known", from: now.known_at, to: null, known_at: null })}>What has changed since</a></p>`}
      <${Fault} fault=${fault} /><${Busy} busy=${busy && !picture} what="Loading the graph" />
      ${picture && picture.nodes.size === 0 && html`<${Empty}>Nothing is known here${now.known_at ? " yet at that time" : ""}.</${Empty}>`}
      ${picture && (isTable
        ? html`<${FactTable} picture=${picture} relations=${relations} webGL=${webGL} />`
        : html`<${GraphBox} picture=${picture} now=${now} relations=${relations} />`)}
      <${TimeBar} changes=${changes} commits=${commits || []} />
    </section>
    ${isOpen && html`<aside class="panel" ref=${panel} tabindex="-1" aria-label="Details">
      ${now.fact ? html`<${Why} group=${group} id=${now.fact} known_at=${now.known_at} epoch=${epoch} />`
        : now.entity ? html`<${Entity} group=${group} id=${now.entity} brief=${true} />`
          : html`<${Results} group=${group} />`}
    </aside>`}
  </div>`;
}

function Tools({ now, picture, isTable, webGL }) {
  const shown = picture ? [...picture.nodes.values()].filter((one) => one.kind !== "value").length : 0;
  const isOverview = picture && [...picture.nodes.values()].some((one) => one.kind === "community");
  const total = picture ? Math.max(picture.total.entities, shown) : 0;
  const noun = isOverview ? "communities and entities" : "entities";
  const names = useMemo(() => [...new Set([...(picture?.facts.values() ?? [])].map((one) => one.relation))].sort(), [picture]);
  return html`<div class="tools">
    <p class="count" role="status">${picture ? html`Showing <b>${shown.toLocaleString("en")}</b> of <b>${total.toLocaleString("en")}</b> ${noun}, ${picture.facts.size.toLocaleString("en")} facts` : " "}</p>
    ${(now.centre || now.open || now.community) && html`<button class="small" onClick=${() => go({ centre: null, open: null, community: null, fact: null, entity: null })}>Whole group</button>`}
    ${picture && shown < total && shown < MOST_NODES && !isOverview && html`<button class="small" onClick=${() => go({ limit: Math.min(MOST_NODES, (Number(now.limit) || 200) * 2) })}>Show more</button>`}
    <span class="gap"></span>
    <details class="menu"><summary>Filter${now.relations ? " ·" : ""}</summary><div>
      ${names.map((name) => html`<label><input type="checkbox" checked=${!now.relations || now.relations.split(",").includes(name)} onChange=${(event) => {
        const chosen = new Set(now.relations ? now.relations.split(",") : names);
        chosen[event.target.checked ? "add" : "delete"](name);
        go({ relations: chosen.size === names.length ? null : [...chosen].join(",") || "-" }, { replace: true });
      }} /> ${words(name)}</label>`)}
    </div></details>
    ${webGL && html`<${Choice} label="Colours" value=${now.colour || "type"} options=${[["type", "Types"], ["community", "Communities"]]} onChange=${(colour) => go({ colour: colour === "type" ? null : colour }, { replace: true })} />
    <${Choice} label="Form" value=${isTable ? "yes" : "no"} options=${[["no", "Graph"], ["yes", "Table"]]} onChange=${(table) => go({ table: table === "yes" ? "yes" : null })} />`}
    <details class="menu"><summary>More</summary><div>
      <button onClick=${() => savePicture(shownNow.drawing)} disabled=${isTable}>Save as PNG</button>
      <button onClick=${() => saveDrawing(shownNow.drawing)} disabled=${isTable}>Save as SVG</button>
      <button onClick=${() => shownNow.drawing?.relayout()} disabled=${isTable}>Lay out anew</button>
      <button onClick=${() => navigator.clipboard?.writeText(location.href).then(() => tell("The link is copied."))}>Copy the link</button>
      <button onClick=${() => go({ overview: now.overview === "yes" ? "no" : "yes", centre: null, open: null, community: null })}>${now.overview === "yes" ? "Entities" : "Communities as nodes"}</button>
    </div></details>
  </div>`;
}

function GraphBox({ picture, now, relations }) {
  const box = useRef(null);
  const drawing = useRef(null);
  const [types, setTypes] = useState([]);
  const selected = now.entity || (now.centre && picture.nodes.has(now.centre) ? null : null);
  useEffect(() => {
    const openNode = (id) => {
      const node = drawing.current.picture.nodes.get(id);
      const open = new Set((address.value.open || "").split(",").filter(Boolean));
      if (node.kind === "value" || open.has(id)) return;
      open.add(id);
      go({ open: [...open].join(",") });
    };
    const stage = box.current; // a frame may come after the view is gone, when the reference is empty
    const made = new Drawing(stage, {
      select: (id) => {
        const node = id && drawing.current.picture.nodes.get(id);
        if (!node) go({ entity: null, fact: null });
        else if (node.kind === "value") go({ fact: [...drawing.current.picture.facts.values()].find((one) => one.node === id).id });
        else if (node.kind === "entity") go({ entity: id, fact: null });
      },
      open: openNode,
      fact: (fact) => go({ fact: fact.id }),
      settled: (ms) => (stage.dataset.ms = Math.round(ms)),
    });
    drawing.current = made;
    shownNow.drawing = made;
    const restyle = () => {
      made.theme();
      made.show({});
    };
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", restyle);
    addEventListener("kgray-theme", restyle);
    let frame = 0; // several moves within one frame are one step
    const step = () => {
      frame = 0;
      const began = performance.now();
      made.move(clock.value.at);
      stage.dataset.step = (performance.now() - began).toFixed(1);
    };
    const forget = clock.follow(({ at }) => {
      if (made.picture && at !== made.look.at) frame ||= requestAnimationFrame(step);
    });
    return () => {
      dark.removeEventListener("change", restyle);
      removeEventListener("kgray-theme", restyle);
      forget();
      cancelAnimationFrame(frame);
      made.end();
      shownNow.drawing = null;
    };
  }, []);
  useEffect(() => {
    Object.assign(drawing.current.look, { at: clock.value.at, colour: now.colour || "type", selected: now.entity, relations });
    drawing.current.draw(picture);
    const counts = new Map();
    for (const node of picture.nodes.values()) {
      if (node.kind === "entity") counts.set(node.labels[0] || "other", (counts.get(node.labels[0] || "other") || 0) + 1);
    }
    setTypes([...counts].sort((a, b) => b[1] - a[1]).slice(0, 8));
  }, [picture]);
  useEffect(() => {
    drawing.current.show({ selected: now.entity, colour: now.colour || "type", relations });
  }, [now.entity, now.colour, relations]);
  const zoom = (factor) => () => drawing.current.zoom(factor);
  return html`<div class="canvas">
    <div class="graph" ref=${box} role="img" aria-label=${`A graph of ${picture.nodes.size} nodes; the table has the same facts`}></div>
    ${now.colour !== "community" && html`<ul class="legend" aria-label="Types">${types.map(([name, count]) => html`<li><svg viewBox="0 0 10 10" aria-hidden="true"><circle cx="5" cy="5" r="5" fill=${colourOfType(name === "other" ? null : name)} /></svg>${name} <small>${count}</small></li>`)}
      <li class="line"><svg viewBox="0 0 24 6" aria-hidden="true"><path d="M0 3h24" stroke-dasharray="5 4" /></svg>ended</li><li>≈ inferred date</li></ul>`}
    <div class="zoom"><button class="icon" aria-label="Closer" onClick=${zoom(0.66)}>+</button><button class="icon" aria-label="Farther" onClick=${zoom(1.5)}>−</button><button class="icon" aria-label="Show all" onClick=${zoom(null)}>⤢</button></div>
  </div>`;
}
