// Where nodes stand. A node's first place comes from its id, so the same picture begins alike; what has a
// place already keeps it when a picture grows.
const trusted = globalThis.trustedTypes?.createPolicy("kgray", { createScriptURL: (url) => url });
const WORKER = "/page/layout-worker.js";

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i += 1) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return value >>> 0;
}

/** A first place within a disc, by the id; near a neighbour that has a place. */
export function firstPlace(id, near, spread) {
  const seed = hash(id);
  const angle = ((seed & 0xffff) / 0xffff) * 2 * Math.PI;
  const radius = Math.sqrt((seed >>> 16) / 0xffff) * spread;
  const [x, y] = near || [0, 0];
  return [x + Math.cos(angle) * radius, y + Math.sin(angle) * radius];
}

export class Layout {
  constructor(onPlaces) {
    this.worker = new Worker(trusted ? trusted.createScriptURL(WORKER) : WORKER);
    this.run = 0;
    this.worker.onmessage = ({ data }) => data.run === this.run && onPlaces(data.positions, data.settled);
  }

  /** Lay out a graph anew; `fixed`: the nodes that stay. */
  start(graph, fixed = new Set()) {
    const order = graph.order;
    const nodes = new Float32Array(order * 10);
    const edges = new Float32Array(graph.size * 3);
    const index = new Map();
    let i = 0;
    graph.forEachNode((id, node) => {
      index.set(id, i);
      nodes.set([node.x, node.y, 0, 0, 0, 0, 1, 1, node.size, fixed.has(id) ? 1 : 0], i);
      i += 10;
    });
    i = 0;
    graph.forEachEdge((_, __, source, target) => {
      edges.set([index.get(source), index.get(target), 1], i);
      nodes[index.get(source) + 6] += 1;
      nodes[index.get(target) + 6] += 1;
      i += 3;
    });
    const settings = {
      linLogMode: false, outboundAttractionDistribution: false, adjustSizes: false, edgeWeightInfluence: 1,
      scalingRatio: 12, strongGravityMode: true, gravity: 0.12, slowDown: 1 + Math.log(Math.max(2, order)),
      barnesHutOptimize: order > 300, barnesHutTheta: 0.7,
    };
    const iterations = order < 300 ? 400 : order < 1200 ? 220 : 140;
    this.run += 1;
    this.worker.postMessage({ nodes: nodes.buffer, edges: edges.buffer, settings, iterations, run: this.run });
  }

  stop() {
    this.worker.terminate();
  }
}
