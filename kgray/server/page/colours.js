// Colours that people with colour blindness tell apart (Paul Tol's "bright"), and those of the theme.
export const HUES = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44aa99"];
export const MARKS = { opened: "#3b7dd8", ended: "#e0752d", changed: "#9a5bc4" };
export const REST = "#9aa0a8";

const TYPES = ["Person", "Organization", "Place", "Product", "Project", "Event"];

/** The colour of a type: the usual ones have one of their own, others by their letters. */
export function colourOfType(label) {
  if (!label) return REST;
  const known = TYPES.indexOf(label);
  if (known >= 0) return HUES[known];
  let sum = 0;
  for (const letter of label) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return HUES[sum % HUES.length];
}

/** A variable of the style sheet, for what is drawn on a canvas; sigma knows hex colours alone. */
export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
