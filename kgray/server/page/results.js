// The results of a search: scores, why each is there, and what the time filter removed.
import { html, useLoaded, useStore } from "./view.js";
import { address, go, linkTo } from "./address.js";
import { ask, inGroup, session } from "./api.js";
import { Busy, Empty, Fault, LongText } from "./parts.js";
import { moment, phase, shown, span } from "./times.js";

async function search(group, q, as_of, known_at, signal) {
  const body = { query: q, limit: 20, explain: true };
  if (known_at) body.known_at = known_at;
  const facts = { ...body, scopes: ["fact"], any_time: true };
  if (as_of) body.as_of = as_of;
  const [found, ever] = await Promise.all([
    ask(inGroup(group, "search"), { body, signal }),
    ask(inGroup(group, "search"), { body: facts, signal }),
  ]);
  const at = as_of ? moment(as_of) : Date.now();
  const kept = new Set(found.hits.map((hit) => hit.id));
  const hidden = ever.hits.filter(
    (hit) => !kept.has(hit.id) && phase({ from: moment(hit.valid_at), to: moment(hit.invalid_at) }, at) !== "present",
  );
  return { ...found, hidden };
}

export function Results({ group }) {
  const { q, known_at, as_of } = useStore(address); // the address follows the clock when it rests
  const { epoch } = useStore(session);
  const { data, fault, busy } = useLoaded((signal) => search(group, q, as_of, known_at, signal), [group, q, as_of, known_at, epoch]);
  return html`<section class="results" aria-label="Results">
    <header><h2 dir="auto">“${q}”</h2><button class="plain" aria-label="Close" onClick=${() => go({ q: null })}>✕</button></header>
    <${Busy} busy=${busy && !data} what="Searching" /><${Fault} fault=${fault} />
    ${data && !data.hits.length && html`<${Empty}>Nothing fits.</${Empty}>`}
    ${data && html`<p class="quiet" role="status">${data.hits.length} results in ${Math.round(data.took_ms)} ms, as of ${as_of ? shown(moment(as_of)) : "today"}</p>
      <ol class="hits">${data.hits.map((hit) => html`<${Hit} key=${hit.id} hit=${hit} />`)}</ol>
      ${data.hidden.length > 0 && html`<details class="hidden-hits"><summary>The time filter removed ${data.hidden.length}</summary>
        <ol class="hits">${data.hidden.map((hit) => html`<${Hit} key=${hit.id} hit=${hit} />`)}</ol></details>`}
      ${data.left_out.length > 0 && html`<details><summary>Said above already: ${data.left_out.length}</summary>
        <ul>${data.left_out.map((one) => html`<li dir="auto">${one.text}</li>`)}</ul></details>`}`}
  </section>`;
}

const TARGETS = {
  fact: (hit) => ({ fact: hit.id, centre: hit.source_id, open: null, community: null }),
  entity: (hit) => ({ entity: hit.id, centre: hit.id, open: null, community: null, fact: null }),
  community: (hit) => ({ community: hit.id, centre: null, open: null }),
  episode: (hit) => ({ view: "episode", episode: hit.id }),
};

function Hit({ hit }) {
  const reasons = [
    ...Object.entries(hit.methods).map(([name, rank]) => `rank ${rank} by ${name}`),
    ...Object.entries(hit.signals || {}).map(([name, value]) => `${name} ${Number(value).toFixed(2)}`),
  ];
  const when = hit.scope === "fact" ? span(hit) : hit.reference_time ? shown(moment(hit.reference_time)) : "";
  return html`<li>
    <a class="hit" href=${linkTo(TARGETS[hit.scope](hit))} data-scope=${hit.scope} data-ended=${hit.invalid_at ? "yes" : null}>
      <span class="kind">${hit.scope === "episode" ? "message" : hit.scope}</span>
      <span class="text" dir="auto">${hit.speaker ? html`<b>${hit.speaker}</b> ` : ""}<${LongText} text=${hit.text} most=${240} /></span>
      <span class="dates">${when}</span>
    </a>
    <details><summary>score ${hit.score.toFixed(3)}</summary><small>${reasons.join(" · ") || "no signals"}</small></details>
  </li>`;
}
