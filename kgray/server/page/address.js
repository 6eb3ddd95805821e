// The state of the page is its address: a link is a finding.
import { Store } from "./view.js";

const read = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

/** view, group, q, centre, open, community, fact, entity, as_of, known_at, depth, table, colour, level, ... */
export const address = new Store(read());

addEventListener("hashchange", () => {
  address.value = {};
  address.set(read());
});

/** Change parts of the address; null takes one away. `replace`: without an entry in the history. */
export function go(changes, { replace = false } = {}) {
  const next = { ...address.value, ...changes };
  for (const [name, value] of Object.entries(next)) if (value == null || value === "") delete next[name];
  const hash = `#${new URLSearchParams(next)}`;
  if (hash === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", hash);
  address.value = {};
  address.set(next);
}

/** The address of a state that differs from this one by these changes, for `href`. */
export function linkTo(changes) {
  const next = { ...address.value, ...changes };
  for (const [name, value] of Object.entries(next)) if (value == null || value === "") delete next[name];
  return `#${new URLSearchParams(next)}`;
}

let waiting = 0;
/** The same without haste: browsers bound how often an address may change. */
export function goSoon(changes) {
  clearTimeout(waiting);
  waiting = setTimeout(() => go(changes, { replace: true }), 250);
}
