// Requests to the server: the key, errors, streams of events, and whether the server is there.
import { Store } from "./view.js";

const KEY = "kgray-key"; // in the storage of this tab; it ends with it

/** online; epoch grows when the server is back; rights of the key; needsKey: why one is asked for. */
export const session = new Store({ online: true, epoch: 0, rights: null, groups: null, needsKey: null });

/** An answer that is no success, as RFC 9457 has it. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `the server answered ${status}`);
    Object.assign(this, { status, code: body.code, refusals: body.refusals || [] });
  }
}

export const key = () => sessionStorage.getItem(KEY);

/** Keep a key for this tab, or forget it; then learn what it may do. */
export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  return learnRights();
}

export async function learnRights() {
  try {
    const rights = await ask("/v1/key");
    const groups = rights.scopes.includes("read") ? (await ask("/v1/groups")).groups : [];
    session.set({ rights, groups, needsKey: null, epoch: session.value.epoch + 1 });
  } catch (fault) {
    if (!(fault instanceof Problem)) throw fault;
    session.set({ rights: null, groups: null, needsKey: fault.message });
  }
}

/** Whether the key has a scope; without rights nothing is allowed. */
export function may(scope) {
  return Boolean(session.value.rights?.scopes.includes(scope));
}

export function inGroup(group, path, query = {}) {
  const told = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const asked = told.length ? `?${new URLSearchParams(told)}` : "";
  return `/v1/groups/${encodeURIComponent(group)}/${path}${asked}`;
}

async function send(path, { method, body, headers = {}, signal } = {}) {
  const told = { ...headers };
  if (key()) told.authorization = `Bearer ${key()}`;
  const isData = body instanceof Blob || typeof body === "string";
  if (body !== undefined && !isData) told["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method: method || (body === undefined ? "GET" : "POST"),
      body: body === undefined || isData ? body : JSON.stringify(body),
      headers: told,
      signal,
      cache: "no-cache",
      credentials: "omit",
    });
  } catch (fault) {
    if (fault.name !== "AbortError") lost();
    throw fault;
  }
  if (answer.ok) return answer;
  const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
  if (answer.status === 401) session.set({ rights: null, needsKey: problem.message });
  throw problem;
}

/** The JSON of an answer. Raises Problem, and TypeError where the server is away. */
export const ask = async (path, how) => (await send(path, how)).json();

/** Yield [name, data] of server-sent events; by fetch, because EventSource sends no key. */
export async function* events(path, how) {
  const answer = await send(path, { ...how, headers: { accept: "text/event-stream" } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n");
        const of = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        if (of("data")) yield [of("event"), JSON.parse(of("data"))];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Note that the server is away, and look every second whether it is back. */
function lost() {
  if (!session.value.online) return;
  session.set({ online: false });
  const look = async () => {
    try {
      await fetch("/healthz", { cache: "no-store" });
      session.set({ online: true });
      await learnRights();
    } catch {
      setTimeout(look, 1000);
    }
  };
  setTimeout(look, 1000);
}
