// Ingestion: what was accepted, read, committed, failed and held by group, live; uploads, schedules.
import { html, useEffect, useLoaded, useRef, useState, useStore } from "./view.js";
import { ask, events, inGroup, may, session } from "./api.js";
import { Busy, Empty, Fault, tell } from "./parts.js";
import { moment, shownExactly } from "./times.js";

const STATES = ["accepted", "extracted", "committed", "failed", "held"];
const number = (value) => (value ?? 0).toLocaleString("en");
const WINDOW_MS = 30_000; // over which the rate is measured

/** The board, live; after a break it is asked for again. */
function useBoard(epoch) {
  const [board, setBoard] = useState({});
  useEffect(() => {
    const giveUp = new AbortController();
    const seen = [];
    const follow = async () => {
      while (!giveUp.signal.aborted) {
        try {
          for await (const [, data] of events("/v1/status/events", { signal: giveUp.signal })) {
            const done = Object.values(data.groups).reduce((sum, one) => sum + one.committed + one.failed, 0);
            const now = performance.now();
            seen.push([now, done]);
            while (seen[0][0] < now - WINDOW_MS && seen.length > 1) seen.shift();
            const seconds = (now - seen[0][0]) / 1000;
            setBoard({ data, rate: seconds > 0.5 ? (done - seen[0][1]) / seconds : 0 });
          }
        } catch (fault) {
          if (giveUp.signal.aborted) return;
          setBoard((before) => ({ ...before, fault }));
          if (fault.status === 401 || fault.status === 403) return;
        }
        await new Promise((done) => setTimeout(done, 2000));
      }
    };
    follow();
    return () => giveUp.abort();
  }, [epoch]);
  return board;
}

export function Ingestion({ group }) {
  const { epoch } = useStore(session);
  const { data, rate, fault } = useBoard(epoch);
  const schedules = useLoaded((signal) => ask("/v1/schedules", { signal }), [epoch]);
  return html`<section class="page ingestion"><header><h2>Ingestion</h2></header>
    <${Fault} fault=${fault} /><${Busy} busy=${!data && !fault} />
    ${data && html`<dl class="figures">
        <div><dt>Waiting</dt><dd>${number(data.ingesting.pending)}</dd></div>
        <div><dt>Oldest waits</dt><dd>${data.ingesting.oldest_s ? `${number(data.ingesting.oldest_s)} s` : "–"}</dd></div>
        <div><dt>Rate</dt><dd>${(rate || 0).toFixed(1)} <small>per s</small></dd></div>
        <div><dt>Calls of models</dt><dd>${number(data.model.calls)}</dd></div>
        <div><dt>Tokens</dt><dd>${number(data.model.prompt_tokens)} <small>in</small> ${number(data.model.completion_tokens)} <small>out</small></dd></div>
      </dl>
      ${data.ingesting.fault && html`<p class="fault" role="alert">Not ingesting: ${data.ingesting.fault}</p>`}
      <${Groups} groups=${data.groups} /><${Runtime} runtime=${data.runtime} />`}
    ${group && html`<${Failures} group=${group} count=${data?.groups[group]?.failed} held=${data?.groups[group]?.held} /><${Upload} key=${group} group=${group} />`}
    <h3>Schedules</h3><${Fault} fault=${schedules.fault} />
    ${schedules.data && (schedules.data.schedules.length
      ? html`<table><thead><tr><th scope="col">Name</th><th scope="col">When</th><th scope="col">Next</th><th scope="col">Last</th><th scope="col">Outcome</th></tr></thead><tbody>
        ${schedules.data.schedules.map((one) => html`<tr><th scope="row">${one.name}</th><td><code>${one.cron}</code> ${one.zone}</td><td>${shownExactly(moment(one.next))}</td><td>${shownExactly(moment(one.last)) || "never"}</td><td>${one.running ? "running" : one.said || "–"}</td></tr>`)}</tbody></table>`
      : html`<${Empty}>Communities are refreshed by hand: <code>kgray schedule add</code> makes a schedule.</${Empty}>`)}
  </section>`;
}

const Groups = ({ groups }) => html`<table class="groups"><thead><tr><th scope="col">Group</th>${STATES.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
  <tbody>${Object.entries(groups).map(([name, one]) => html`<tr key=${name}><th scope="row">${name}</th>${STATES.map((state) => html`<td data-state=${one[state] ? state : null}>${number(one[state])}</td>`)}</tr>`)}</tbody></table>`;

function Runtime({ runtime }) {
  const actors = Object.entries(runtime.actors || {});
  return html`<h3>Processes</h3>
    <p class="quiet">${runtime.backend === "ray" ? `Ray ${runtime.state || ""} ${runtime.address || ""}` : "This server ingests by itself."} ${runtime.reason || ""}</p>
    ${actors.length > 0 && html`<table><thead><tr><th scope="col">Actor</th><th scope="col">State</th><th scope="col">Process</th><th scope="col">Done</th></tr></thead><tbody>
      ${actors.map(([name, row]) => html`<tr><th scope="row">${name}</th><td>${row.fault ? row.fault.message : row.state || "up"}</td><td>${row.pid ?? ""}</td><td>${number(row.done ?? row.totals?.committed ?? row.writes)}</td></tr>`)}</tbody></table>`}`;
}

function Failures({ group, count, held }) {
  const { data, fault } = useLoaded((signal) => ask(inGroup(group, "failures"), { signal }), [group, count, held]);
  const retry = (ids) =>
    ask(inGroup(group, "retry"), { body: { episodes: ids } }).then(({ accepted }) => tell(`${accepted} are taken up again.`), (error) => tell(error.message));
  const rows = data?.failures || [];
  return html`<h3>Failures in ${group} ${rows.length > 0 && may("add") && html`<button class="small" onClick=${() => retry([])}>Retry all</button>`}</h3>
    <${Fault} fault=${fault} />
    ${data && !rows.length && html`<${Empty}>None.</${Empty}>`}
    ${rows.length > 0 && html`<table><thead><tr><th scope="col">Message</th><th scope="col">Why</th><th scope="col">Tries</th><th scope="col"><span class="visually-hidden">Action</span></th></tr></thead><tbody>
      ${rows.slice(0, 200).map((row) => html`<tr><th scope="row">${row.client_id || String(row.id).slice(0, 8) || "the group"}</th><td dir="auto">${row.class || row.kind}: ${row.message}</td><td>${row.attempts}</td>
        <td>${row.id && may("add") && html`<button class="small" onClick=${() => retry([row.id])}>Retry</button>`}</td></tr>`)}</tbody></table>`}`;
}

function Upload({ group }) {
  const [state, setState] = useState({});
  const input = useRef(null);
  if (!may("add")) return null;
  const send = async () => {
    const [file] = input.current.files;
    if (!file) return;
    setState({ busy: true });
    try {
      setState({ name: file.name, report: await ask(inGroup(group, "files", { name: file.name }), { method: "POST", body: file }) });
      input.current.value = "";
    } catch (fault) {
      setState({ fault });
    }
  };
  const report = state.report;
  return html`<h3>Add a file to ${group}</h3>
    <p class="acts"><label class="file"><span class="visually-hidden">File</span><input ref=${input} type="file" accept=".jsonl,.ndjson,.json,.csv,.tsv,.parquet,.txt,.md" onChange=${send} disabled=${state.busy} /></label>
      <small>JSON lines, JSON, CSV, Parquet or text, 8 MiB at most</small></p>
    <${Busy} busy=${state.busy} what="Sending" /><${Fault} fault=${state.fault} />
    ${report && html`<p role="status">${state.name}: ${number(report.accepted)} accepted, ${number(report.duplicate)} known already, ${number(report.refused)} refused.</p>
      ${report.refusals.length > 0 && html`<table><thead><tr><th scope="col">Line</th><th scope="col">Field</th><th scope="col">Why it is refused</th></tr></thead><tbody>
        ${report.refusals.map((row) => html`<tr><td>${row.line ?? ""}</td><td>${row.field || ""}</td><td dir="auto">${row.reason}</td></tr>`)}</tbody></table>`}`}`;
}
