// The same neighbourhood as a table: for screen readers, for copying, and where there is no WebGL.
import { html, useMemo, useState, useStore } from "./view.js";
import { go, linkTo } from "./address.js";
import { clock } from "./timebar.js";
import { INFERRED, isInferred, phase, shown, words } from "./times.js";

const PAGE = 200; // rows at a time
const COLUMNS = [
  ["source", "Subject"],
  ["relation", "Relation"],
  ["target", "Object"],
  ["from", "From"],
  ["to", "To"],
  ["phase", "At the moment"],
];
const PHASES = { present: "holds", past: "ended", future: "not yet" };

const When = ({ fact, name, text }) =>
  isInferred(fact, name) ? html`<span title="No message states this date; it was inferred">${INFERRED}${text}<span class="visually-hidden"> (inferred)</span></span>` : text;

export function FactTable({ picture, relations, webGL }) {
  const { at } = useStore(clock);
  const [sort, setSort] = useState(["from", 1]);
  const [most, setMost] = useState(PAGE);
  const rows = useMemo(() => {
    const moment = at ?? Date.now();
    const found = [...picture.facts.values()]
      .filter((fact) => !relations || relations.has(fact.relation))
      .map((fact) => ({ fact, ...fact, phase: phase(fact, moment) }));
    const [name, way] = sort;
    return found.sort((a, b) => way * ((a[name] ?? "") > (b[name] ?? "") ? 1 : (a[name] ?? "") < (b[name] ?? "") ? -1 : 0));
  }, [picture, relations, at, sort]);
  const walk = (event) => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!way) return;
    const links = [...event.currentTarget.querySelectorAll("tbody a.row")];
    const next = links[links.indexOf(document.activeElement) + way];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  };
  return html`<div class="table" tabindex="0" role="region" aria-label="Facts" data-ready="yes" data-rows=${rows.length} onKeyDown=${walk}>
    ${!webGL && html`<p class="quiet">This browser draws no WebGL, so the facts are shown as a table.</p>`}
    <table>
      <thead><tr>${COLUMNS.map(([name, text]) => html`<th scope="col" aria-sort=${sort[0] === name ? (sort[1] > 0 ? "ascending" : "descending") : "none"}>
        <button class="plain" onClick=${() => setSort([name, sort[0] === name ? -sort[1] : 1])}>${text}${sort[0] === name ? (sort[1] > 0 ? " ↑" : " ↓") : ""}</button></th>`)}</tr></thead>
      <tbody>${rows.slice(0, most).map(
        (row) => html`<tr key=${row.id} data-phase=${row.phase}>
          <th scope="row" dir="auto"><a href=${linkTo({ entity: row.source_id, fact: null })}>${row.source}</a></th>
          <td><a class="row" href=${linkTo({ fact: row.id })} title="Why">${words(row.relation)}</a></td>
          <td dir="auto">${row.target_id ? html`<a href=${linkTo({ entity: row.target_id, fact: null })}>${row.target}</a>` : row.target}</td>
          <td><${When} fact=${row} name="valid_at" text=${shown(row.from) || "unknown"} /></td>
          <td><${When} fact=${row} name="invalid_at" text=${row.to == null ? (row.event ? "" : "still") : shown(row.to)} /></td>
          <td>${PHASES[row.phase]}</td>
        </tr>`,
      )}</tbody>
    </table>
    ${rows.length > most && html`<button onClick=${() => setMost(most + PAGE)}>${rows.length - most} more</button>`}
  </div>`;
}
