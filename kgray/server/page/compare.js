// Compare two moments on either clock: what opened, ended, was reworded or merged.
import { html, useEffect, useLoaded, useMemo, useRef, useStore } from "./view.js";
import { address, go, linkTo } from "./address.js";
import { ask, inGroup, session } from "./api.js";
import { MARKS } from "./colours.js";
import { Drawing, hasWebGL } from "./drawing.js";
import { Busy, Choice, Empty, FactLine, Fault } from "./parts.js";
import { Picture } from "./picture.js";
import { DAY, dayOf, span } from "./times.js";

const LISTS = [["opened", "Opened"], ["ended", "Ended"], ["changed", "Reworded or moved in time"]];

function pictureOf(found) {
  const picture = new Picture();
  const rows = { opened: found.opened, ended: found.ended, changed: found.changed.map((one) => one.after) };
  const all = Object.values(rows).flat();
  for (const fact of all) {
    for (const [id, name] of [[fact.source_id, fact.source], [fact.target_id, fact.target]]) {
      if (id && picture.nodes.size < 2000) picture.nodes.set(id, { id, name, kind: "entity", labels: [] });
    }
  }
  for (const [mark, facts] of Object.entries(rows)) picture.takeFacts(facts, mark);
  return picture;
}

export function Compare({ group }) {
  const now = useStore(address);
  const { epoch } = useStore(session);
  const on = now.clock === "known" ? "known" : "world";
  const from = now.from || dayOf(Date.now() - 365 * DAY);
  const to = now.to || dayOf(Date.now());
  const name = on === "world" ? "as_of" : "known_at";
  const isKnown = on === "known";
  // On the clock of the memory a day alone means its end, and a moment of the field is in UTC.
  const moment = (text) => (!isKnown ? text.slice(0, 10) : text.endsWith("Z") ? text : text.length === 10 ? `${text}T23:59:59.999Z` : `${text}Z`);
  const { data, fault, busy } = useLoaded(
    (signal) => ask(inGroup(group, "diff", { [`from_${name}`]: moment(from), [`to_${name}`]: moment(to), limit: 500 }), { signal }),
    [group, on, from, to, epoch],
  );
  const picture = useMemo(() => data && pictureOf(data), [data]);
  const field = (key, value, text) => html`<label>${text} <input type=${isKnown ? "datetime-local" : "date"} step=${isKnown ? 1 : null} value=${isKnown ? moment(value).slice(0, 19) : value.slice(0, 10)} onChange=${(event) => event.target.value && go({ [key]: event.target.value })} /></label>`;
  return html`<section class="page compare"><header><h2>Compare</h2>
      <${Choice} label="Clock" value=${on} options=${[["world", "What was true"], ["known", "What was known"]]} onChange=${(one) => go({ clock: one === "known" ? one : null })} />
      ${field("from", from, "From")} ${field("to", to, "to")}${isKnown && html` <small>UTC</small>`}</header>
    <${Busy} busy=${busy && !data} what="Comparing" /><${Fault} fault=${fault} />
    ${data && html`<div class="split">
      <div class="lists">
        ${LISTS.map(([key, title]) => html`<section data-mark=${key}><h3>${title} <small>${data.total[key]}</small></h3>
          ${!data[key].length && html`<${Empty}>Nothing.</${Empty}>`}
          <ul class="facts">${data[key].map((row) => html`<li><${FactLine} fact=${row.after || row} mark=${key} />${row.before && html`<small class="quiet" dir="auto">before: ${row.before.text} ${span(row.before)}</small>`}</li>`)}</ul></section>`)}
        <section><h3>Entities <small>${data.total.entities_new} new, ${data.total.entities_gone} gone, ${data.merged.length} merged</small></h3>
          <ul class="facts">${data.merged.map((one) => html`<li><span dir="auto">${one.name} → <a href=${linkTo({ view: "entity", entity: one.into })}>${one.into_name}</a></span></li>`)}
          ${data.entities_renamed.map((one) => html`<li>renamed: <span dir="auto">${one.name}</span></li>`)}</ul></section>
        ${data.truncated && html`<p class="quiet">Each list shows its first 500.</p>`}
      </div>
      ${picture.facts.size > 0 && hasWebGL() && html`<${DiffGraph} picture=${picture} />`}
    </div>`}
  </section>`;
}

function DiffGraph({ picture }) {
  const box = useRef(null);
  const drawing = useRef(null);
  useEffect(() => {
    const made = new Drawing(box.current, {
      select: (id) => id && !id.startsWith("value ") && go({ view: "entity", entity: id }),
      open: () => {},
      fact: (fact) => go({ view: "explore", fact: fact.id }),
    });
    drawing.current = made;
    const restyle = () => (made.theme(), made.show({}));
    addEventListener("kgray-theme", restyle);
    return () => (removeEventListener("kgray-theme", restyle), made.end());
  }, []);
  // Each fact shows by its mark, so the moment is after all of them.
  useEffect(() => drawing.current.draw(picture), [picture]);
  return html`<div class="canvas"><div class="graph" ref=${box} role="img" aria-label="The differences as a graph; the lists have the same"></div>
    <ul class="legend">${LISTS.map(([key, title]) => html`<li><svg viewBox="0 0 24 6" aria-hidden="true"><path d="M0 3h24" style=${{ stroke: MARKS[key] }} stroke-dasharray=${key === "ended" ? "5 4" : null} /></svg>${title}</li>`)}</ul></div>`;
}
