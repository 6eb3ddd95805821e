// Small parts that several views share.
import { html, useEffect, useRef } from "./view.js";
import { Store, useStore } from "./view.js";
import { linkTo, go } from "./address.js";
import { shown, moment, span, words } from "./times.js";

/** A line that says what happened, for some seconds; `undo` adds a button. */
export const notice = new Store({ text: "", undo: null });
let ending = 0;
export function tell(text, undo = null) {
  clearTimeout(ending);
  notice.set({ text, undo });
  ending = setTimeout(() => notice.set({ text: "", undo: null }), undo ? 20_000 : 6_000);
}

export function Notice() {
  const { text, undo } = useStore(notice);
  const takeBack = () => {
    notice.set({ text: "Taking it back…", undo: null });
    undo().then(() => tell("Taken back."), (fault) => tell(fault.message));
  };
  return html`<div class="notice" role="status" aria-live="polite" data-shown=${text ? "yes" : null}>
    <span>${text}</span>${undo && html`<button class="plain" onClick=${takeBack}>Undo</button>`}
  </div>`;
}

export const Fault = ({ fault }) =>
  fault ? html`<p class="fault" role="alert">${fault.name === "TypeError" ? "The server gives no answer." : fault.message}</p>` : null;

export const Busy = ({ busy, what = "Loading" }) => (busy ? html`<p class="quiet busy">${what}…</p>` : null);

export const Empty = ({ children }) => html`<p class="quiet empty">${children}</p>`;

/** A text, long ones cut until they are opened. */
export function LongText({ text, most = 1200 }) {
  const letters = Array.from(text);
  if (letters.length <= most) return html`<span dir="auto">${text}</span>`;
  return html`<span dir="auto">${letters.slice(0, most).join("")}…</span>
    <details><summary>All ${letters.length.toLocaleString("en")} characters</summary><span dir="auto">${text}</span></details>`;
}

/** A message with the words marked from which something was read. Marks count characters, not UTF-16 units. */
export function Marked({ text, marks }) {
  if (!marks.length) return html`<${LongText} text=${text} />`;
  const letters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const [from, to] of [...marks].sort((a, b) => a[0] - b[0])) {
    if (from < at) continue;
    const before = letters.slice(at, from);
    parts.push(at === 0 && before.length > 600 ? `…${before.slice(-300).join("")}` : before.join(""));
    parts.push(html`<mark>${letters.slice(from, to).join("")}</mark>`);
    at = to;
  }
  const rest = letters.slice(at);
  parts.push(rest.length > 900 ? `${rest.slice(0, 600).join("")}…` : rest.join(""));
  return html`<span dir="auto">${parts}</span>`;
}

/** A fact in one line, as a link to the reason for it. */
export function FactLine({ fact, at = null, mark = null }) {
  const ended = fact.invalid_at && (at == null || moment(fact.invalid_at) <= at);
  return html`<a class="fact" href=${linkTo({ fact: fact.id, view: "explore" })} data-ended=${ended ? "yes" : null} data-mark=${mark}>
    <span dir="auto">${fact.text}</span>
    <span class="dates">${span(fact)}</span>
  </a>`;
}

export const EntityLink = ({ id, name }) =>
  html`<a href=${linkTo({ view: "entity", entity: id, fact: null })} dir="auto">${name}</a>`;

/** A dialog above the page; Escape and its cross close it. */
export function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  useEffect(() => {
    if (!box.current.open) box.current.showModal();
  }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose} onClick=${(event) => event.target === box.current && onClose()}>
    <div class="sheet">
      <header><h2>${title}</h2><button class="plain" aria-label="Close" onClick=${onClose}>✕</button></header>
      ${children}
    </div>
  </dialog>`;
}

/** Buttons of which one is pressed. */
export const Choice = ({ label, options, value, onChange }) =>
  html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(([name, text]) => html`<button aria-pressed=${String(name === value)} onClick=${() => onChange(name)}>${text}</button>`)}
  </div>`;

export const said = (message) => `${message.speaker ? `${message.speaker}, ` : ""}${shown(moment(message.reference_time))}`;

export const relationWords = words;
export { go, linkTo };
