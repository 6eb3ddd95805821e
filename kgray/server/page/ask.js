// Ask: a streamed answer with its sources, and the context that would go into a prompt.
import { html, useRef, useState, useStore } from "./view.js";
import { address, go, linkTo } from "./address.js";
import { ask as request, events, inGroup, session } from "./api.js";
import { Empty, Fault, tell } from "./parts.js";
import { moment, shown, span } from "./times.js";

const TARGETS = {
  fact: (one) => ({ view: "explore", fact: one.id, centre: one.source_id, q: null }),
  entity: (one) => ({ view: "entity", entity: one.id }),
  community: (one) => ({ view: "explore", community: one.id, centre: null }),
  episode: (one) => ({ view: "episode", episode: one.id }),
};

/** Answers without a number of their own (a context's hits) count from 1. */
const Sources = ({ sources }) => html`<ol class="sources">${sources.map((one, i) => html`<li>
  <a href=${linkTo(TARGETS[one.scope](one))}><b>[${one.number ?? i + 1}]</b> <span dir="auto">${one.speaker ? `${one.speaker}: ` : ""}${one.text.slice(0, 300)}</span>
  <span class="dates">${one.scope === "fact" ? span(one) : one.reference_time ? shown(moment(one.reference_time)) : ""}</span></a></li>`)}</ol>`;

export function Ask({ group }) {
  const { question, as_of, known_at } = useStore(address);
  const { rights } = useStore(session);
  const [state, setState] = useState({});
  const running = useRef(null);
  const moments = Object.fromEntries(Object.entries({ as_of, known_at }).filter(([, value]) => value));

  const answer = async (text) => {
    running.current?.abort();
    const giveUp = (running.current = new AbortController());
    let answered = "";
    setState({ busy: true, answered });
    try {
      const context = request(inGroup(group, "context"), { body: { query: text, tokens: 1500, ...moments }, signal: giveUp.signal });
      if (!rights.can_answer) return setState({ context: await context });
      for await (const [name, data] of events(inGroup(group, "ask"), { body: { question: text, stream: true, ...moments }, signal: giveUp.signal })) {
        if (name === "text") setState({ busy: true, answered: (answered += data.text) });
        if (name === "error") throw new Error(data.detail);
        if (name === "answer") setState({ answered: data.answer, answer: data });
      }
      const found = await context;
      setState((before) => ({ ...before, context: found }));
    } catch (fault) {
      if (!giveUp.signal.aborted) setState({ fault, answered });
    }
    return null;
  };
  const submit = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("question").trim();
    if (!text) return;
    go({ question: text });
    answer(text);
  };
  const copy = () => navigator.clipboard.writeText(state.context.text).then(() => tell("The context is copied."), () => tell("The browser did not allow it."));
  return html`<section class="page ask"><header><h2>Ask</h2></header>
    <form onSubmit=${submit}>
      <label class="visually-hidden" for="question">Question</label>
      <textarea id="question" name="question" rows="2" placeholder="Where does Alice work?" defaultValue=${question || ""} required
        onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && (event.preventDefault(), event.target.form.requestSubmit())}></textarea>
      <button class="main" disabled=${state.busy}>${rights?.can_answer ? "Ask" : "Find the context"}</button>
    </form>
    ${rights && !rights.can_answer && html`<p class="quiet">No model answers here (<code>model.backend</code>). What a prompt would be given is shown.</p>`}
    <${Fault} fault=${state.fault} />
    ${(state.answered || state.busy) && html`<div class="answer" aria-live="polite" aria-busy=${String(Boolean(state.busy))} dir="auto">${state.answered || "Reading…"}</div>`}
    ${state.answer && html`<h3>Sources</h3>${state.answer.sources.length ? html`<${Sources} sources=${state.answer.sources} />` : html`<${Empty}>It names no source.</${Empty}>`}`}
    ${state.context && html`<h3>Context <small>${state.context.tokens.toLocaleString("en")} tokens</small> <button class="small" onClick=${copy}>Copy</button></h3>
      <pre class="context" tabindex="0" dir="auto">${state.context.text || "Nothing fits the question."}</pre>
      ${!state.answer && html`<h3>What it rests on</h3><${Sources} sources=${state.context.hits} />`}`}
  </section>`;
}
