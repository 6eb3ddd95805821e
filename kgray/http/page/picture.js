// A picture: what is known of a neighbourhood, all spans at once, and what of it shows at a moment.
import { moment, phase, span, words } from "./times.js";

export const MOST_NODES = 2000;

export class Picture {
  constructor() {
    this.nodes = new Map(); // id -> {id, name, kind: entity | value | community, labels, community, facts, size}
    this.facts = new Map(); // id -> the fact with `from` and `to`
    this.edges = new Map(); // "a>b" -> {id, source, target, facts}: the facts between two, in one direction
    this.total = { entities: 0, facts: 0 };
    this.left = 0; // entities that were not taken in, because the picture is full
  }

  /** Take in an answer of /graph. */
  take(answer) {
    this.total.entities = Math.max(this.total.entities, answer.total.entities);
    this.total.facts = Math.max(this.total.facts, answer.total.facts);
    for (const one of answer.entities) {
      if (this.nodes.size >= MOST_NODES && !this.nodes.has(one.id)) this.left += 1;
      else this.nodes.set(one.id, { ...this.nodes.get(one.id), ...one, kind: "entity" });
    }
    this.takeFacts(answer.facts);
    return this;
  }

  takeFacts(facts, mark = null) {
    for (const fact of facts) {
      const value = fact.target_id == null && fact.target != null;
      const target = value ? `value ${fact.source_id} ${fact.relation} ${fact.target}` : fact.target_id;
      const known = this.nodes.has(fact.source_id) && (value || target == null || this.nodes.has(target));
      if (!known || target == null) continue;
      if (value && !this.nodes.has(target)) {
        if (this.nodes.size >= MOST_NODES) continue;
        this.nodes.set(target, { id: target, name: fact.target, kind: "value", labels: [] });
      }
      this.facts.set(fact.id, { ...fact, from: moment(fact.valid_at), to: moment(fact.invalid_at), mark, node: target });
    }
    this.bundle();
  }

  /** Take in communities as super-nodes, with how many facts connect them. */
  takeOverview(answer) {
    for (const one of answer.communities) {
      this.nodes.set(one.id, { ...one, kind: "community", labels: [], community: one.id });
    }
    for (const [a, b, count] of answer.links) {
      this.edges.set(`${a}>${b}`, { id: `${a}>${b}`, source: a, target: b, facts: [], count });
    }
    this.total = { entities: answer.total.communities, facts: answer.total.links };
    return this;
  }

  bundle() {
    this.edges.clear();
    for (const node of this.nodes.values()) node.facts = 0;
    for (const fact of this.facts.values()) {
      const id = `${fact.source_id}>${fact.node}`;
      if (!this.edges.has(id)) this.edges.set(id, { id, source: fact.source_id, target: fact.node, facts: [] });
      this.edges.get(id).facts.push(fact);
      this.nodes.get(fact.source_id).facts += 1;
      this.nodes.get(fact.node).facts += 1;
    }
  }

  /** What begins or ends when: {times, edges}, sorted by time; an edge stands at each time of its facts. */
  events() {
    const found = [];
    for (const edge of this.edges.values()) {
      for (const { from, to } of edge.facts) {
        if (from != null) found.push([from, edge]);
        if (to != null) found.push([to, edge]);
      }
    }
    found.sort((a, b) => a[0] - b[0]);
    return { times: Float64Array.from(found, ([at]) => at), edges: found.map(([, edge]) => edge) };
  }

  /** The moments at which something begins or ends, sorted, each once. */
  changes() {
    const at = new Set();
    for (const fact of this.facts.values()) {
      if (fact.from != null) at.add(fact.from);
      if (fact.to != null) at.add(fact.to);
    }
    return [...at].sort((a, b) => a - b);
  }
}

/** What of an edge shows at a moment: {phase, label, mark}; an edge of the future does not show. */
export function stateOf(edge, at, relations) {
  if (edge.count) return { phase: "present", label: edge.count === 1 ? "1 fact" : `${edge.count} facts` };
  let best = null;
  let others = 0;
  const rank = { present: 2, past: 1, future: 0 };
  for (const fact of edge.facts) {
    if (relations && !relations.has(fact.relation)) continue;
    const now = at == null ? (fact.to == null ? "present" : "past") : phase(fact, at);
    if (now === "future") continue;
    if (best && rank[now] === rank[best.phase]) others += 1;
    if (!best || rank[now] > rank[best.phase]) {
      best = { phase: now, fact };
      others = 0;
    }
  }
  if (!best) return { phase: "future" };
  const dates = span(best.fact);
  const label = `${words(best.fact.relation)}${dates ? ` · ${dates}` : ""}${others ? ` +${others}` : ""}`;
  return { phase: best.phase, label, mark: best.fact.mark, fact: best.fact };
}
