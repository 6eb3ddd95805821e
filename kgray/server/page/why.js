// Why a fact is known: its spans, the words of the messages, what ended it, and what models answered.
import { html, useLoaded, useState } from "./view.js";
import { ask, inGroup, may } from "./api.js";
import { proposeRetraction, proposeStatement } from "./actions.js";
import { Busy, Dialog, EntityLink, Fault, Marked, go, said, tell } from "./parts.js";
import { dayOf, isInferred, moment, shown, shownExactly, span, words } from "./times.js";

const KINDS = { holds: "says that it holds", ended: "says that it ended", denied: "denies it", happened: "tells that it happened" };

export function Why({ group, id, known_at, epoch }) {
  const { data, fault, busy } = useLoaded((signal) => ask(inGroup(group, `facts/${encodeURIComponent(id)}`), { signal }), [group, id, epoch]);
  const close = () => go({ fact: null });
  return html`<section class="why" aria-label="Why this fact is known">
    <header><h2>Why</h2><button class="plain" aria-label="Close" onClick=${close}>✕</button></header>
    <${Busy} busy=${busy && !data} /><${Fault} fault=${fault} />
    ${data && html`<${Reasons} group=${group} found=${data} id=${id} known_at=${known_at} />`}
  </section>`;
}

function Reasons({ group, found, id, known_at }) {
  const fact = found.facts.find((one) => one.id === id) || found.facts[0];
  if (!fact) return html`<p class="quiet">It is no longer believed.</p>`;
  const evidence = found.messages.filter((one) => one.role !== "end");
  const ends = found.messages.filter((one) => one.role === "end");
  return html`
    <p class="statement" dir="auto">${fact.text}</p>
    <p class="triple"><${EntityLink} id=${fact.source_id} name=${fact.source} /> <span>${words(fact.relation)}</span> →${" "}
      ${fact.target_id ? html`<${EntityLink} id=${fact.target_id} name=${fact.target} />` : html`<b dir="auto">${fact.target}</b>`}</p>
    ${known_at && html`<p class="past">The reasons are those known today.</p>`}
    <h3>When</h3>
    <ul class="spans">
      ${found.facts.map(
        (one) => html`<li aria-current=${one.id === fact.id ? "true" : null}>
          <b>${span(one) || "at an unknown time"}</b>
          ${[["valid_at", "start inferred"], ["invalid_at", "end inferred"]].map(([name, text]) => isInferred(one, name) && html` <span class="tag" title="No message states this date; it was inferred">${text}</span>`)}
          ${one.ended_by && html` <span class="tag" title="Another message ended it">end from another message</span>`}
          <small>learned ${shownExactly(moment(one.created_at))}${one.expired_at ? `; its end ${shownExactly(moment(one.expired_at))}` : ""}</small>
        </li>`,
      )}
    </ul>
    <h3>Said in</h3>
    <${Conversation} group=${group} messages=${evidence} evidence=${found.evidence} />
    ${ends.length > 0 && html`<h3>Ended by</h3><${Conversation} group=${group} messages=${ends} evidence=${[]} />`}
    ${found.truncated && html`<p class="quiet">Only the first pieces of evidence are shown.</p>`}
    <${Answers} found=${found} />
    ${may("add") && html`<${Corrections} group=${group} fact=${fact} />`}
  `;
}

function Conversation({ group, messages, evidence }) {
  return html`<ol class="talk">
    ${messages.map((one) => {
      const kinds = evidence.filter((row) => row.episode === one.id).map((row) => KINDS[row.kind]);
      return html`<li key=${one.id} data-role=${one.role}>
        <p class="said">${said(one)}${kinds.length > 0 && html` <span class="tag">${[...new Set(kinds)].join(", ")}</span>`}</p>
        <p class="text"><${Marked} text=${one.text} marks=${one.marks} /></p>
        ${one.role !== "around" &&
        html`<p class="acts"><small>${one.client_id || one.id.slice(0, 8)} · ${one.source}</small>
          ${may("correct") && html`<button class="small" onClick=${() => proposeRetraction(group, one)}>Retract…</button>`}</p>`}
      </li>`;
    })}
  </ol>`;
}

function Answers({ found }) {
  const answers = found.models.filter((one) => one.calls || one.dropped.length);
  if (!answers.length && !found.verdicts.length) return null;
  return html`<details class="answers"><summary>Answers of models (${answers.length + found.verdicts.length})</summary>
    ${answers.map(
      (one) => html`<p><b>${one.model}</b> · ${one.calls} calls, ${one.prompt_tokens} + ${one.completion_tokens} tokens</p>
        ${one.dropped.length > 0 && html`<p class="quiet">Left out: ${one.dropped.join("; ")}</p>`}
        <pre tabindex="0">${JSON.stringify(one.reply, null, 1)}</pre>`,
    )}
    ${found.verdicts.map((one) => html`<p>Judged by ${one.judge}: it excludes statement ${one.a === found.statement ? one.b : one.a}</p>`)}
  </details>`;
}

function Corrections({ group, fact }) {
  const [asked, setAsked] = useState(null);
  const triple = { source: fact.source, relation: fact.relation };
  if (fact.target_id) triple.target = fact.target;
  else triple.value = fact.target;
  const deny = () =>
    proposeStatement(group, "Deny it", "An episode of source “page” says that this was never so.", { ...triple, denied: true });
  const end = (day) => {
    setAsked(null);
    const start = fact.valid_at ? { valid_at: fact.valid_at } : { valid_at: null };
    if (fact.valid_at && moment(day) <= moment(fact.valid_at)) return tell("The end must lie after the start.");
    return proposeStatement(group, "End it", `An episode of source “page” says that this ended on ${shown(moment(day))}.`, { ...triple, ...start, invalid_at: day });
  };
  const correct = (name) => {
    setAsked(null);
    const right = fact.target_id ? { target: name } : { value: name };
    if (name === fact.target) return tell("That is what it says already.");
    const dates = { valid_at: fact.valid_at, ...(fact.invalid_at && { invalid_at: fact.invalid_at }) };
    return proposeStatement(
      group, "Correct it", `An episode of source “page” says that it is ${name} instead, and was never ${fact.target}.`,
      { ...triple, denied: true }, { source: fact.source, relation: fact.relation, ...right, ...dates },
    );
  };
  return html`<h3>Put it right</h3>
    <p class="acts">
      ${!fact.invalid_at && html`<button onClick=${() => setAsked("end")}>End it…</button>`}
      <button onClick=${() => setAsked("correct")}>Correct it…</button>
      <button onClick=${deny}>It was never so…</button>
    </p>
    ${asked === "end" && html`<${Question} title="When did it end?" type="date" value=${dayOf(Date.now())} onAnswer=${end} onClose=${() => setAsked(null)} />`}
    ${asked === "correct" && html`<${Question} title=${`${fact.source} ${words(fact.relation)} …`} type="text" value=${fact.target} onAnswer=${correct} onClose=${() => setAsked(null)} />`}`;
}

function Question({ title, type, value, onAnswer, onClose }) {
  const submit = (event) => {
    event.preventDefault();
    onAnswer(new FormData(event.target).get("answer"));
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      <label>${type === "date" ? "Day" : "What is right"} <input name="answer" type=${type} defaultValue=${value} required /></label>
      <footer><button type="button" onClick=${onClose}>Leave it</button><button class="main">Look ahead</button></footer>
    </form>
  </${Dialog}>`;
}
