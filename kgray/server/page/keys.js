// The keyboard reaches everything: single keys where nothing is being typed.
import { go, address } from "./address.js";
import { html } from "./view.js";
import { Dialog } from "./parts.js";
import { clock, setMoment, step } from "./timebar.js";
import { shownNow } from "./explore.js";

export const KEYS = [
  ["/", "search"],
  ["[ and ]", "previous and next change"],
  ["space", "play or pause"],
  ["0", "today"],
  ["t", "table or graph"],
  ["+ and -", "closer, farther"],
  ["1 to 5", "the views"],
  ["Esc", "close the panel"],
  ["?", "this help"],
];
const VIEWS = ["explore", "compare", "ask", "communities", "ingestion"];

/** Close the open menu and return to its button; false where none is open. */
function closeMenu() {
  const menu = document.querySelector(".menu[open]");
  if (!menu) return false;
  menu.open = false;
  menu.querySelector("summary").focus();
  return true;
}

export function listen({ search, help }) {
  addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const field = event.target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const onButton = event.target.closest?.("button, a, summary, input[type=checkbox]");
    const act = {
      "/": search,
      "[": () => step(shownNow.changes, -1),
      "]": () => step(shownNow.changes, 1),
      " ": () => !onButton && clock.set({ playing: !clock.value.playing }),
      0: () => setMoment(null, { now: true }),
      t: () => go({ table: address.value.table === "yes" ? null : "yes" }),
      "+": () => shownNow.drawing?.zoom(0.66),
      "-": () => shownNow.drawing?.zoom(1.5),
      Escape: () => closeMenu() || go(address.value.fact ? { fact: null } : { entity: null, q: null }),
      "?": help,
    }[event.key];
    const view = VIEWS[Number(event.key) - 1];
    if (act && !(event.key === " " && onButton)) {
      event.preventDefault();
      act();
    } else if (view) go({ view });
  });
}

export const Help = ({ onClose }) => html`<${Dialog} title="Keys" onClose=${onClose}>
  <dl class="keys-list">${KEYS.map(([name, does]) => html`<dt><kbd>${name}</kbd></dt><dd>${does}</dd>`)}</dl>
  <p class="quiet">A node: click for what is known of it, double click to open its neighbours. An edge: click for the reason.</p>
</${Dialog}>`;
