// Changes: each is looked at first (a dry run), then done, and can be taken back.
import { html, useState, useLoaded, Store, useStore } from "./view.js";
import { address, go } from "./address.js";
import { ask, inGroup, session } from "./api.js";
import { Busy, Dialog, Fault, tell } from "./parts.js";
import { span } from "./times.js";

/** title, preview (body of /preview), apply() -> {text, undo}, action: the word on the button, or null. */
const proposal = new Store({ now: null });
export const propose = (now) => proposal.set({ now });

const WAIT = { prefer: "wait=20" };
const refresh = () => session.set({ epoch: session.value.epoch + 1 });

/** Close the fact that shows: after a change it may be gone. Returns what opens it again. */
function leaveFact() {
  const { fact } = address.value;
  go({ fact: null }, { replace: true });
  return () => go({ fact }, { replace: true });
}
const post = (group, path, body, headers = {}) => ask(inGroup(group, path), { body, headers });

/** Append an episode and wait until it is ingested. */
export async function append(group, row, query = {}) {
  const answer = await ask(inGroup(group, "episodes", query), { body: row, headers: WAIT });
  refresh();
  return answer;
}

export async function retract(group, ids) {
  await post(group, "retract", { episodes: ids });
  refresh();
}

/** A proposal to take an episode out of what is believed; undo adds it again. */
export function proposeRetraction(group, message) {
  const { id, client_id, text, kind, speaker, source, reference_time } = message;
  const content = kind === "json" ? { content: JSON.parse(text) } : kind === "triples" ? { triples: JSON.parse(text) } : { text };
  const row = { ...content, kind, source, at: reference_time };
  if (speaker) row.speaker = speaker;
  if (client_id) row.id = client_id;
  propose({
    title: "Retract this message",
    about: "What rests on it alone is no longer believed, and what it had ended holds again. Reads of the past still show it.",
    preview: { retract: [id] },
    action: "Retract",
    apply: async () => {
      leaveFact(); // and it stays closed: what is told anew has other ids
      await retract(group, [id]);
      return { text: "Retracted.", undo: () => append(group, row, { again: true }) };
    },
    group,
  });
}

/** A proposal to add facts, ends or denials, as an episode of the source `page`. */
export function proposeStatement(group, title, about, ...triples) {
  const row = { kind: "triples", source: "page", triples };
  propose({
    title,
    about,
    preview: { episode: row },
    action: title,
    apply: async () => {
      const back = leaveFact();
      const answer = await append(group, row);
      const id = answer.accepted[0]?.id;
      return { text: "Done.", undo: id ? () => retract(group, [id]).then(back) : null };
    },
    group,
  });
}

/** A proposal of merge, distinct or split, whose undo takes its sequence back. */
export function proposeCorrection(group, kind, title, about, body, preview) {
  propose({
    title,
    about,
    preview,
    action: title,
    apply: async () => {
      const answer = await post(group, kind, body, WAIT);
      refresh();
      return {
        text: "Done.",
        undo: async () => {
          await post(group, "undo", { sequence: answer.sequence }, WAIT);
          refresh();
        },
      };
    },
    group,
  });
}

const OPS = { add: "opens", change: "changes", remove: "takes away" };

/** The rows of a preview that people read: facts and names. */
export function Changes({ found }) {
  const rows = found.changes.filter((row) => row.type === "fact" || row.type === "entity" || row.type === "merge");
  if (!rows.length) return html`<p class="quiet">No fact and no name changes.</p>`;
  return html`<ul class="changes">
    ${rows.slice(0, 100).map(
      (row) => html`<li data-op=${row.op}><b>${OPS[row.op]}</b>
        ${row.type === "fact"
          ? html`<span dir="auto">${row.text}</span> <span class="dates">${span(row)}</span>`
          : row.type === "entity"
            ? html`<span dir="auto">${row.name}${row.aliases?.length ? ` (${row.aliases.join(", ")})` : ""}</span>`
            : html`<span>${row.kind}</span>`}
      </li>`,
    )}
  </ul>${found.total > rows.length && html`<p class="quiet">${found.total} records change in all.</p>`}`;
}

function Proposal({ now }) {
  const [state, setState] = useState({});
  const { data, fault, busy } = useLoaded((signal) => ask(inGroup(now.group, "preview"), { body: now.preview, signal }), [now]);
  const apply = async () => {
    setState({ busy: true });
    try {
      const { text, undo } = await now.apply();
      propose(null);
      tell(text, undo);
    } catch (error) {
      setState({ fault: error });
    }
  };
  return html`<${Dialog} title=${now.title} onClose=${() => propose(null)}>
    <p class="quiet">${now.about}</p>
    <h3>What would change</h3>
    <${Busy} busy=${busy} what="Looking ahead" /><${Fault} fault=${fault || state.fault} />
    ${data && html`<${Changes} found=${data} />`}
    <footer>
      <button onClick=${() => propose(null)}>Leave it</button>
      <button class="main" disabled=${!data || state.busy} onClick=${apply}>${state.busy ? "Working…" : now.action}</button>
    </footer>
  </${Dialog}>`;
}

export function Proposals() {
  const { now } = useStore(proposal);
  return now ? html`<${Proposal} key=${now.title} now=${now} />` : null;
}
