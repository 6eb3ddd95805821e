// The clocks: `as of` filters here, at frame rate; `known at` asks the server, at moments of its records.
import { html, Store, useEffect, useMemo, useRef, useState, useStore } from "./view.js";
import { address, go, goSoon } from "./address.js";
import { DAY, dayOf, moment, shown, shownExactly } from "./times.js";

/** The moment that shows: at (null = today), and what it moves between. */
export const clock = new Store({ at: null, playing: false });
const STEPS = 400;
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Move the clock; the address follows a little later. */
export function setMoment(at, { now = false } = {}) {
  clock.set({ at });
  (now ? (changes) => go(changes, { replace: true }) : goSoon)({ as_of: dayOf(at) || null });
}

// A link, or the way back, may lead to another moment.
addEventListener("hashchange", () => {
  const { as_of } = address.value;
  if (dayOf(clock.value.at) !== (as_of || "").slice(0, 10)) clock.set({ at: moment(as_of) });
});

/** Go to the next or previous moment with a change; after the last change, to today. */
export function step(changes, direction) {
  const at = clock.value.at ?? Date.now();
  const later = direction > 0 ? changes.find((one) => one > at) : changes.findLast((one) => one < at);
  if (later != null) setMoment(later);
  else if (direction > 0) setMoment(null);
}

function Density({ changes, low, high }) {
  const bars = useMemo(() => {
    const counts = new Array(100).fill(0);
    for (const at of changes) counts[Math.min(99, Math.max(0, Math.floor(((at - low) / (high - low)) * 100)))] += 1;
    const most = Math.max(1, ...counts);
    return counts.map((count) => (count ? 0.15 + 0.85 * Math.sqrt(count / most) : 0));
  }, [changes, low, high]);
  return html`<svg class="density" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    ${bars.map((height, i) => height > 0 && html`<rect x=${i + 0.15} y=${10 - 10 * height} width="0.7" height=${10 * height} rx="0.2" />`)}
  </svg>`;
}

export function TimeBar({ changes, commits }) {
  const { at, playing } = useStore(clock);
  const { known_at } = useStore(address);
  const now = useRef(Date.now()).current;
  const [low, high] = useMemo(() => {
    const first = changes[0] ?? now - 365 * DAY;
    const last = Math.max(changes.at(-1) ?? now, Math.min(now, (changes.at(-1) ?? now) + 60 * DAY));
    const margin = Math.max(DAY, (last - first) * 0.02);
    return [first - margin, last + margin];
  }, [changes]);
  const position = Math.round((((at ?? high) - low) / (high - low)) * STEPS);
  const move = (event) => setMoment(low + (event.target.valueAsNumber / STEPS) * (high - low));

  useEffect(() => {
    if (!playing) return undefined;
    let from = clock.value.at;
    if (from == null || from >= high - DAY) from = low;
    let last = performance.now();
    let frame = 0;
    const tick = (time) => {
      if (still.matches && time - last < 1000) {
        frame = requestAnimationFrame(tick);
        return;
      }
      from += ((time - last) / 12_000) * (high - low);
      last = time;
      if (from >= high) {
        clock.set({ playing: false });
        setMoment(null);
        return;
      }
      setMoment(from);
      frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame);
  }, [playing, low, high]);

  return html`<div class="timebar" role="group" aria-label="Time">
    <div class="keys">
      <button class="icon" aria-label=${playing ? "Pause" : "Play"} title="Play (space)" onClick=${() => clock.set({ playing: !playing })}>${playing ? "❚❚" : "▶"}</button>
      <button class="icon" aria-label="Previous change" title="Previous change ([)" onClick=${() => step(changes, -1)}>‹</button>
      <button class="icon" aria-label="Next change" title="Next change (])" onClick=${() => step(changes, 1)}>›</button>
      <button class="small" aria-pressed=${String(at == null)} onClick=${() => setMoment(null, { now: true })}>Today</button>
    </div>
    <label class="track">
      <span class="name">True at <output>${at == null ? "today" : shown(at)}</output></span>
      <${Density} changes=${changes} low=${low} high=${high} />
      <input type="range" min="0" max=${STEPS} value=${Math.min(STEPS, Math.max(0, position))} aria-valuetext=${at == null ? "today" : shown(at)} onInput=${move} />
    </label>
    <${KnownAt} commits=${commits} known_at=${known_at} />
  </div>`;
}

function KnownAt({ commits, known_at }) {
  const last = commits.length;
  const asked = known_at ? commits.findLastIndex((one) => one.at <= known_at) + 1 : last;
  const [position, setPosition] = useState(asked);
  const waiting = useRef(0);
  useEffect(() => setPosition(asked), [asked, last]);
  const move = (event) => {
    const next = event.target.valueAsNumber;
    setPosition(next);
    clearTimeout(waiting.current);
    waiting.current = setTimeout(() => go({ known_at: next >= last ? null : commits[Math.max(0, next - 1)].at }), 350);
  };
  const name = position >= last ? "now" : shownExactly(moment(commits[Math.max(0, position - 1)]?.at));
  return html`<label class="track known" data-past=${position < last ? "yes" : null}>
    <span class="name">As known <output>${name}</output></span>
    <input type="range" min=${Math.min(1, last)} max=${Math.max(1, last)} value=${position} disabled=${last < 2} aria-valuetext=${name} onInput=${move} />
  </label>`;
}
