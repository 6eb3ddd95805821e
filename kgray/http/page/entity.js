// An entity: names, summary, a timeline of its facts, neighbours, and what may be the same.
import { html, useLoaded, useMemo, useState, useStore } from "./view.js";
import { address, go, linkTo } from "./address.js";
import { ask, inGroup, may, session } from "./api.js";
import { proposeCorrection } from "./actions.js";
import { Busy, Empty, EntityLink, Fault } from "./parts.js";
import { clock } from "./timebar.js";
import { DAY, isInferred, moment, shown, span, words } from "./times.js";

/** An entity with its facts; which of their dates are inferred, its neighbourhood says. */
async function loadEntity(group, id, known_at, signal) {
  const around = { centre: id, known_at, limit: 2000, most_facts: 20_000 };
  const [found, { facts }] = await Promise.all([
    ask(inGroup(group, `entities/${encodeURIComponent(id)}/history`, { known_at }), { signal }),
    ask(inGroup(group, "graph", around), { signal }),
  ]);
  const inferred = new Map(facts.map((fact) => [fact.id, fact.inferred]));
  return { ...found, facts: found.facts.map((fact) => ({ ...fact, inferred: inferred.get(fact.id) })) };
}

export function Entity({ group, id, brief = false }) {
  const { known_at } = useStore(address);
  const { epoch } = useStore(session);
  const { data, fault, busy } = useLoaded(
    (signal) => loadEntity(group, id, known_at, signal),
    [group, id, known_at, epoch],
  );
  const one = data?.entity;
  return html`<section class=${brief ? "entity brief" : "entity page"} aria-label="Entity">
    <header><h2 dir="auto">${one?.name || " "}</h2>
      ${brief && html`<button class="plain" aria-label="Close" onClick=${() => go({ entity: null })}>✕</button>`}</header>
    <${Busy} busy=${busy && !data} /><${Fault} fault=${fault} />
    ${data && html`
      <p class="tags">${one.labels.map((label) => html`<span class="tag">${label}</span>`)}
        ${brief && html`<a href=${linkTo({ view: "entity", fact: null })}>All about it</a>`}
        <a href=${linkTo({ view: "explore", centre: one.id, open: null, community: null, entity: one.id, fact: null })}>In the graph</a></p>
      ${(one.profile || one.summary) && html`<p class="summary" dir="auto">${one.profile || one.summary}</p>`}
      <h3>Facts over time</h3>
      <${Bars} facts=${data.facts} own=${one.id} />
      ${!brief && html`<${Neighbours} facts=${data.facts} own=${one.id} />`}
      ${!brief && html`<${Names} group=${group} entity=${one} /><${Alike} key=${one.id} group=${group} entity=${one} />`}`}
  </section>`;
}

/** The spans as bars by relation, on one scale; what is open ends in an arrow. */
function Bars({ facts, own }) {
  const { at } = useStore(clock);
  const now = at ?? Date.now();
  const [low, high] = useMemo(() => {
    const told = facts.flatMap((one) => [moment(one.valid_at), moment(one.invalid_at)]).filter((one) => one != null);
    const last = Math.max(...told, Date.now() - 30 * DAY, -Infinity);
    const first = Math.min(...told, last - 90 * DAY);
    const margin = (last - first) * 0.04;
    return [first - margin, last + margin];
  }, [facts]);
  if (!facts.length) return html`<${Empty}>No fact is known.</${Empty}>`;
  const share = (time) => Math.min(100, Math.max(0, ((time - low) / (high - low)) * 100));
  const groups = new Map();
  for (const fact of facts) {
    if (!groups.has(fact.relation)) groups.set(fact.relation, []);
    groups.get(fact.relation).push(fact);
  }
  const years = [];
  for (let year = new Date(low).getUTCFullYear() + 1; Date.UTC(year, 0) < high; year += 1) years.push(year);
  const shownYears = years.filter((_, i) => i % Math.ceil(years.length / 6 || 1) === 0);
  return html`<div class="bars">
    <div class="scale" aria-hidden="true">${shownYears.map((year) => html`<span style=${{ left: `${share(Date.UTC(year, 0))}%` }}>${year}</span>`)}</div>
    ${[...groups].map(([relation, rows]) => html`<section><h4>${words(relation)}</h4><ul>
      ${rows.map((fact) => {
        const other = fact.source_id === own ? fact.target : fact.source;
        const from = fact.valid_at ? share(moment(fact.valid_at)) : 0;
        const to = fact.event ? from + 1 : fact.invalid_at ? share(moment(fact.invalid_at)) : 100;
        const state = moment(fact.invalid_at) != null && moment(fact.invalid_at) <= now ? "past" : moment(fact.valid_at) > now ? "future" : "present";
        return html`<li data-state=${state}>
          <a href=${linkTo({ fact: fact.id, view: "explore" })} title=${fact.text}><span dir="auto">${fact.source_id === own ? "" : "← "}${other}</span>
            <span class="dates">${span(fact)}</span></a>
          <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
            <rect x=${from} y="1" width=${Math.max(0.8, to - from)} height="4" rx="0.6" />
            ${[["valid_at", from], ["invalid_at", to]].map(([name, x]) => isInferred(fact, name) && html`<path class="inferred" d=${`M${x} 0v6`} />`)}${!fact.invalid_at && !fact.event && html`<path class="open" d="M98.6 0 100 3l-1.4 3z" />`}<path d=${`M${share(now)} 0v6`} />
          </svg>
          ${fact.ended_by && html`<a class="ended" href=${linkTo({ view: "episode", episode: fact.ended_by[0] })}>ended by this message</a>`}
        </li>`;
      })}</ul></section>`)}
  </div>`;
}

function Neighbours({ facts, own }) {
  const counts = new Map();
  for (const fact of facts) {
    const [id, name] = fact.source_id === own ? [fact.target_id, fact.target] : [fact.source_id, fact.source];
    if (id && id !== own) counts.set(id, { name, count: (counts.get(id)?.count || 0) + 1 });
  }
  const found = [...counts].sort((a, b) => b[1].count - a[1].count).slice(0, 30);
  if (!found.length) return null;
  return html`<h3>Neighbours</h3><ul class="neighbours">${found.map(([id, one]) => html`<li><${EntityLink} id=${id} name=${one.name} /> <small>${one.count}</small></li>`)}</ul>`;
}

function Names({ group, entity }) {
  const [chosen, setChosen] = useState(new Set());
  const names = [entity.name, ...entity.aliases];
  const choose = (name) => {
    const next = new Set(chosen);
    next[next.has(name) ? "delete" : "add"](name);
    setChosen(next);
  };
  const surfaces = [...chosen];
  return html`<h3>Names</h3>
    <ul class="names">${names.map((name) => html`<li><label>${names.length > 1 && may("correct") && html`<input type="checkbox" checked=${chosen.has(name)} onChange=${() => choose(name)} />`}<span dir="auto">${name}</span></label></li>`)}</ul>
    ${chosen.size > 0 && chosen.size < names.length && html`<button onClick=${() => proposeCorrection(group, "split", "Split it", `Mentions of ${surfaces.join(", ")} become another entity.`, { entity: entity.id, surfaces }, { split: { entity: entity.id, surfaces } })}>Make these another entity…</button>`}`;
}

function Alike({ group, entity }) {
  const [asked, setAsked] = useState(false);
  const { epoch } = useStore(session);
  const { data, fault, busy } = useLoaded((signal) => asked && ask(inGroup(group, "duplicates", { limit: 1000 }), { signal }), [asked, group, epoch]);
  const pairs = (data?.pairs || []).filter((pair) => pair.a === entity.id || pair.b === entity.id);
  const both = (pair) => [pair.a, pair.b];
  return html`<h3>May be the same</h3>
    ${!asked && html`<button onClick=${() => setAsked(true)}>Look for duplicates</button>`}
    <${Busy} busy=${asked && busy && !data} what="Looking" /><${Fault} fault=${fault} />
    ${data && !pairs.length && html`<${Empty}>Nothing is alike.</${Empty}>`}
    <ul class="pairs">${pairs.map((pair) => {
      const [id, name] = pair.a === entity.id ? [pair.b, pair.names[1]] : [pair.a, pair.names[0]];
      return html`<li><${EntityLink} id=${id} name=${name} /> <small>${pair.why}</small>
        ${may("correct") && html`<span class="acts">
          <button class="small" onClick=${() => proposeCorrection(group, "merge", "Merge them", `${entity.name} and ${name} become one entity.`, { entities: both(pair) }, { merge: both(pair) })}>Merge…</button>
          <button class="small" onClick=${() => proposeCorrection(group, "distinct", "Keep apart", `${entity.name} and ${name} are never taken for one.`, { entities: both(pair) }, { distinct: both(pair) })}>Keep apart…</button></span>`}
      </li>`;
    })}</ul>`;
}

/** One message, with what is said of it. */
export function Episode({ group, id }) {
  const { epoch } = useStore(session);
  const { data, fault, busy } = useLoaded((signal) => ask(inGroup(group, `episodes/${encodeURIComponent(id)}`), { signal }), [group, id, epoch]);
  return html`<section class="page episode"><header><h2>Message</h2></header><${Busy} busy=${busy && !data} /><${Fault} fault=${fault} />
    ${data && html`<p class="said">${data.speaker || data.source}, ${shown(moment(data.reference_time))}</p><blockquote dir="auto">${data.text}</blockquote>
    <p class="quiet">${data.client_id || data.id} · ${data.source} · ${data.kind} · ${data.state}</p>
    <p><button onClick=${() => history.back()}>Back</button></p>`}</section>`;
}
