// Moments and spans. A moment is milliseconds since 1970 in UTC; spans are half open, [from, to).
export const DAY = 86_400_000;
const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");

export const moment = (text) => (text == null || text === "" ? null : Date.parse(text.length === 10 ? `${text}T00:00Z` : text));

/** "2026-03-01", as an address and an input of a date have it. */
export const dayOf = (at) => (at == null ? "" : new Date(at).toISOString().slice(0, 10));

/** "1 Mar 2026". */
export function shown(at) {
  if (at == null) return "";
  const date = new Date(at);
  return `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]} ${date.getUTCFullYear()}`;
}

/** "1 Mar 2026, 09:30:12", for the clock of the memory. */
export function shownExactly(at) {
  return at == null ? "" : `${shown(at)}, ${new Date(at).toISOString().slice(11, 19)}`;
}

/** Stands before a date that no message states. */
export const INFERRED = "≈";
export const isInferred = (fact, name) => Boolean(fact.inferred?.includes(name));

/** "Mar 2026 – now" of a fact's span, "≈Mar 2026 – now" where its start is inferred; an event has one date. */
export function span(fact) {
  const mark = (name) => (isInferred(fact, name) ? INFERRED : "");
  const short = (text) => {
    const at = new Date(moment(text));
    return `${MONTHS[at.getUTCMonth()]} ${at.getUTCFullYear()}`;
  };
  if (fact.event) return fact.valid_at ? mark("valid_at") + shown(moment(fact.valid_at)) : "";
  if (!fact.valid_at && !fact.invalid_at) return "";
  return `${fact.valid_at ? mark("valid_at") + short(fact.valid_at) : "?"} – ${fact.invalid_at ? mark("invalid_at") + short(fact.invalid_at) : "now"}`;
}

/** past, present or future: where a fact stands at a moment; an unknown start counts as always. */
export function phase(fact, at) {
  if (fact.from != null && fact.from > at) return "future";
  return fact.to != null && fact.to <= at ? "past" : "present";
}

/** "works at", of WORKS_AT. */
export const words = (relation) => relation.replaceAll("_", " ").toLowerCase();
