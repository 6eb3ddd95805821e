// Communities: by level, with reports, members and facts.
import { html, useLoaded, useStore } from "./view.js";
import { address, go, linkTo } from "./address.js";
import { ask, inGroup, session } from "./api.js";
import { Busy, Choice, Empty, EntityLink, FactLine, Fault } from "./parts.js";

export function Communities({ group }) {
  const { level = "0", community, known_at } = useStore(address);
  const { epoch } = useStore(session);
  const { data, fault, busy } = useLoaded((signal) => ask(inGroup(group, "communities", { known_at }), { signal }), [group, known_at, epoch]);
  const every = data?.communities || [];
  const levels = [...new Set(every.map((one) => String(one.level)))].sort();
  const rows = every.filter((one) => String(one.level) === level);
  const chosen = community || rows[0]?.id;
  return html`<section class="page communities"><header><h2>Communities</h2>
      ${levels.length > 1 && html`<${Choice} label="Level" value=${level} options=${levels.map((one) => [one, `Level ${one}`])} onChange=${(one) => go({ level: one === "0" ? null : one, community: null })} />`}
      <a href=${linkTo({ view: "explore", overview: "yes", centre: null, open: null, community: null })}>As a graph</a></header>
    <${Busy} busy=${busy && !data} /><${Fault} fault=${fault} />
    ${data && !every.length && html`<${Empty}>None were found yet: <code>kgray communities refresh</code> finds them.</${Empty}>`}
    <div class="split">
      <ul class="cards">${rows.map((one) => html`<li><a href=${linkTo({ community: one.id })} aria-current=${one.id === chosen ? "true" : null}>
        <b dir="auto">${one.name}</b><small>${one.size} members${one.stale ? " · something is new" : ""}</small></a></li>`)}</ul>
      ${chosen && html`<${Community} key=${chosen} group=${group} id=${chosen} known_at=${known_at} />`}
    </div>
  </section>`;
}

function Community({ group, id, known_at }) {
  const { data, fault, busy } = useLoaded(async (signal) => {
    const [one, graph] = await Promise.all([
      ask(inGroup(group, `communities/${encodeURIComponent(id)}`, { known_at }), { signal }),
      ask(inGroup(group, "graph", { community: id, limit: 200, most_facts: 100, known_at }), { signal }),
    ]);
    return { ...one, facts: graph.facts };
  }, [group, id, known_at]);
  return html`<article class="community"><${Busy} busy=${busy && !data} /><${Fault} fault=${fault} />
    ${data && html`<h3 dir="auto">${data.name}</h3>
      <p><a href=${linkTo({ view: "explore", community: id, centre: null, open: null, colour: "community" })}>In the graph</a></p>
      <p class="summary" dir="auto">${data.summary}</p>
      ${data.report?.rating != null && html`<p>Rated <b>${data.report.rating}</b>: <span dir="auto">${data.report.reason}</span></p>`}
      ${(data.report?.findings || []).map((one) => html`<details><summary dir="auto">${one.summary}</summary><p dir="auto">${one.explanation}</p></details>`)}
      <h4>Members</h4><ul class="neighbours">${data.members.slice(0, 100).map((one) => html`<li><${EntityLink} id=${one.id} name=${one.name} /></li>`)}</ul>
      <h4>Facts</h4><ul class="facts">${data.facts.map((one) => html`<li><${FactLine} fact=${one} /></li>`)}</ul>`}
  </article>`;
}
