// The graph on a canvas: sigma draws, a worker lays out, and the moment chooses what shows.
import Graph from "graphology";
import Sigma from "sigma";
import { HUES, MARKS, REST, colourOfType, themed } from "./colours.js";
import { arrow } from "./edges.js";
import { Layout, firstPlace } from "./layout.js";
import { stateOf } from "./picture.js";

const places = new Map(); // id -> [x, y]: of all that was ever laid out in this tab
const still = matchMedia("(prefers-reduced-motion: reduce)");

export function hasWebGL() {
  try {
    return Boolean(document.createElement("canvas").getContext("webgl2"));
  } catch {
    return false;
  }
}

const LABEL_FONT = "500 12.5px system-ui, sans-serif";
const sizeOf = (node) =>
  node.kind === "value" ? 3 : node.kind === "community" ? 8 + 3 * Math.sqrt(node.size) : (node.facts ? 5 + 1.6 * Math.sqrt(node.facts) : 3.5);

/** The first position whose time is after a moment. */
function after(times, at) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Drawing {
  /** on: {select(id), open(id), fact(fact), settled(ms)} */
  constructor(box, on) {
    this.box = box;
    this.on = on;
    this.graph = new Graph({ multi: true, type: "directed" });
    this.states = new Map();
    this.alive = new Map(); // node -> its edges that hold at the moment
    this.near = null;
    this.look = { at: null, relations: null, selected: null, colour: "type", hidden: null };
    this.hover = null;
    this.renderer = new Sigma(this.graph, box, {
      allowInvalidContainer: true,
      defaultEdgeType: "arrow",
      edgeProgramClasses: { arrow },
      enableEdgeEvents: true,
      renderEdgeLabels: true,
      labelFont: "system-ui, sans-serif",
      labelSize: 12.5,
      labelWeight: "500",
      edgeLabelFont: "system-ui, sans-serif",
      edgeLabelSize: 11,
      labelDensity: 0.9,
      labelGridCellSize: 90,
      labelRenderedSizeThreshold: 5,
      minEdgeThickness: 1.3,
      stagePadding: 60,
      zIndex: true,
      defaultDrawNodeLabel: (context, data) => this.drawLabel(context, data),
      defaultDrawNodeHover: (context, data) => this.drawHover(context, data),
      nodeReducer: (id, data) => this.nodeLook(id, data),
      edgeReducer: (id, data) => this.edgeLook(id, data),
    });
    this.layout = new Layout((positions, settled) => this.place(positions, settled));
    this.follow();
    this.theme();
  }

  follow() {
    const { renderer, on } = this;
    const over = (id) => {
      const nodes = [this.hover, id].filter((one) => one && this.graph.hasNode(one));
      this.hover = id;
      this.box.style.cursor = id ? "pointer" : "";
      const edges = new Set(nodes.flatMap((one) => this.graph.edges(one)));
      renderer.refresh({ partialGraph: { nodes, edges: [...edges] }, skipIndexation: true });
    };
    renderer.on("clickNode", ({ node }) => on.select(node));
    renderer.on("doubleClickNode", ({ node, preventSigmaDefault }) => {
      preventSigmaDefault();
      on.open(node);
    });
    renderer.on("enterNode", ({ node }) => over(node));
    renderer.on("leaveNode", () => over(null));
    renderer.on("clickEdge", ({ edge }) => this.states.get(edge)?.fact && on.fact(this.states.get(edge).fact));
    renderer.on("enterEdge", () => (this.box.style.cursor = "pointer"));
    renderer.on("leaveEdge", () => (this.box.style.cursor = ""));
    renderer.on("clickStage", () => on.select(null));
  }

  theme() {
    this.ink = { text: themed("text"), quiet: themed("quiet"), edge: themed("edge"), ground: themed("ground"), raised: themed("raised"), accent: themed("accent") };
    this.renderer.setSetting("labelColor", { color: this.ink.text });
    this.renderer.setSetting("edgeLabelColor", { color: this.ink.quiet });
  }

  /** Draw a picture. What had a place keeps it; only what is new moves. */
  draw(picture, { anew = false } = {}) {
    this.began = performance.now();
    this.picture = picture;
    this.events = picture.events();
    this.box.dataset.ready = "";
    const fixed = new Set();
    const graph = new Graph({ multi: true, type: "directed" });
    const spread = 30 * Math.sqrt(picture.nodes.size + 1);
    const near = new Map();
    for (const edge of picture.edges.values()) {
      if (places.has(edge.source)) near.set(edge.target, places.get(edge.source));
      if (places.has(edge.target)) near.set(edge.source, places.get(edge.target));
    }
    for (const node of picture.nodes.values()) {
      const known = anew ? null : places.get(node.id);
      if (known) fixed.add(node.id);
      const [x, y] = known || firstPlace(node.id, near.get(node.id), near.has(node.id) ? spread / 3 : spread);
      graph.addNode(node.id, { x, y, size: sizeOf(node), label: node.name, kind: node.kind });
    }
    for (const edge of picture.edges.values()) {
      const size = edge.count ? 1 + Math.log2(edge.count) : 2;
      graph.addEdgeWithKey(edge.id, edge.source, edge.target, { size });
    }
    this.colourNodes();
    this.graph = graph;
    this.show({}, false);
    this.renderer.setGraph(graph);
    this.renderer.setSetting("hideEdgesOnMove", graph.size > 1500);
    requestAnimationFrame(() => (this.box.dataset.drawn = Math.round(performance.now() - this.began)));
    this.moved = fixed.size < this.graph.order;
    if (this.moved && this.graph.order > 1) this.layout.start(this.graph, fixed.size > this.graph.order / 2 ? fixed : new Set());
    if (!this.moved || this.graph.order <= 1) this.settle();
  }

  place(positions, settled) {
    if (!settled && still.matches) return;
    let i = 0;
    this.graph.updateEachNodeAttributes((id, data) => {
      data.x = positions[i];
      data.y = positions[i + 1];
      i += 2;
      places.set(id, [data.x, data.y]);
      return data;
    }, { attributes: ["x", "y"] });
    if (settled) this.settle();
  }

  settle() {
    this.graph.forEachNode((id, data) => places.set(id, [data.x, data.y]));
    requestAnimationFrame(() => {
      this.box.dataset.ready = "yes";
      this.box.dataset.nodes = this.graph.order;
      this.on.settled?.(performance.now() - this.began);
    });
  }

  /** Lay everything out anew. */
  relayout() {
    for (const id of this.graph.nodes()) places.delete(id);
    this.draw(this.picture, { anew: true });
  }

  colourNodes() {
    const seen = new Map();
    for (const node of this.picture.nodes.values()) {
      if (node.community) seen.set(node.community, (seen.get(node.community) || 0) + 1);
    }
    const ranked = [...seen].sort((a, b) => b[1] - a[1]).map(([id]) => id);
    this.hueOf = new Map(ranked.map((id, i) => [id, i < HUES.length ? HUES[i] : REST]));
  }

  colourOf(node) {
    if (node.kind === "value") return REST;
    return this.look.colour === "community" || node.kind === "community"
      ? this.hueOf.get(node.community) || REST
      : colourOfType(node.labels?.[0]);
  }

  /** Change what shows: relations, selected, colour, at (a moment). */
  show(look, refresh = true) {
    Object.assign(this.look, look);
    this.alive.clear();
    this.states.clear();
    this.drawn = 0;
    for (const edge of this.picture.edges.values()) this.restate(edge);
    this.near = this.look.selected ? new Set(this.graph.hasNode(this.look.selected) ? this.graph.neighbors(this.look.selected) : []) : null;
    if (refresh) this.renderer.refresh();
    this.box.dataset.edges = this.drawn;
  }

  /** Move to another moment: only the edges of which a fact begins or ends on the way are drawn anew. */
  move(at) {
    const [from, to] = [this.look.at ?? Infinity, at ?? Infinity].sort((a, b) => (a < b ? -1 : 1));
    this.look.at = at;
    const { times, edges } = this.events;
    const nodes = new Set();
    const changed = new Set();
    for (let i = after(times, from); i < times.length && times[i] <= to; i += 1) {
      const edge = edges[i];
      if (changed.has(edge.id)) continue;
      changed.add(edge.id);
      for (const id of this.restate(edge)) nodes.add(id);
    }
    if (changed.size) this.renderer.refresh({ partialGraph: { nodes: [...nodes], edges: [...changed] }, skipIndexation: true });
    this.box.dataset.edges = this.drawn;
  }

  /** Note the state of an edge at the moment; the nodes that begin or cease to have a fact that holds. */
  restate(edge) {
    const before = this.states.get(edge.id)?.phase ?? "future";
    const state = stateOf(edge, this.look.at, this.look.relations);
    this.states.set(edge.id, state);
    this.drawn += (state.phase !== "future") - (before !== "future");
    const more = (state.phase === "present") - (before === "present");
    if (!more) return [];
    return [edge.source, edge.target].filter((id) => {
      const count = (this.alive.get(id) || 0) + more;
      if (count) this.alive.set(id, count);
      else this.alive.delete(id);
      return count === (more > 0 ? 1 : 0);
    });
  }

  nodeLook(id, data) {
    const node = this.picture.nodes.get(id);
    const isLit = this.alive.has(id) || node.kind === "community" || !node.facts;
    const look = { ...data, color: this.colourOf(node), zIndex: 1 };
    if (!isLit) {
      look.color = this.ink.edge;
      if (node.kind === "value") look.hidden = true;
    }
    const { selected } = this.look;
    if (selected && id !== selected && !this.near.has(id)) {
      look.color = this.ink.edge;
      look.label = null;
      look.zIndex = 0;
    }
    if (id === selected) Object.assign(look, { highlighted: true, zIndex: 2 });
    if (id === this.hover || id === selected || (node.kind === "value" && isLit && this.graph.order < 60)) look.forceLabel = true;
    return look;
  }

  edgeLook(id, data) {
    const state = this.states.get(id);
    if (!state || state.phase === "future") return { ...data, hidden: true };
    const edge = this.picture.edges.get(id);
    const { selected } = this.look;
    const isNear = !selected || edge.source === selected || edge.target === selected;
    const isOver = this.hover && (edge.source === this.hover || edge.target === this.hover);
    const color = state.mark ? MARKS[state.mark] : isOver || (selected && isNear) ? this.ink.quiet : this.ink.edge;
    return {
      ...data,
      color,
      dashed: state.phase === "past" || state.mark === "ended",
      label: isNear && (this.graph.order < 26 || selected || isOver) ? state.label : null,
      forceLabel: Boolean(isOver || (selected && isNear && this.near.size < 25)),
      size: isNear ? data.size : 0.7,
      hidden: Boolean(selected && !isNear && this.graph.order > 300),
    };
  }

  /** The text of a label, cut to the width of the drawing, and its place: right of its node, or under it where the edge is near. */
  labelAt(context, data, gap) {
    context.font = LABEL_FONT;
    const { width } = this.renderer.getDimensions();
    const widthOf = (text) => context.measureText(text).width + 2 * gap;
    const letters = Array.from(data.label);
    let text = data.label;
    while (widthOf(text) > width - 8 && letters.length > 1) {
      letters.pop();
      text = `${letters.join("")}…`;
    }
    const size = widthOf(text);
    const right = data.x + data.size + 3;
    if (right + size <= width - 4) return { text, x: right, y: data.y + 4, size };
    return { text, x: Math.max(4, Math.min(data.x - size / 2, width - 4 - size)), y: data.y + data.size + 13 + gap / 2, size };
  }

  drawLabel(context, data) {
    if (!data.label) return;
    const { text, x, y } = this.labelAt(context, data, 0);
    context.fillStyle = this.ink.text;
    context.fillText(text, x, y);
  }

  drawHover(context, data) {
    if (!data.label) return;
    const { text, x, y: base, size: width } = this.labelAt(context, data, 7);
    const y = base - 15;
    context.beginPath();
    context.arc(data.x, data.y, data.size + 3, 0, 2 * Math.PI);
    context.strokeStyle = this.ink.accent;
    context.lineWidth = 2;
    context.stroke();
    context.beginPath();
    context.roundRect(x, y, width, 22, 6);
    context.fillStyle = this.ink.raised;
    context.shadowColor = "#0004";
    context.shadowBlur = 8;
    context.fill();
    context.shadowBlur = 0;
    context.fillStyle = this.ink.text;
    context.fillText(text, x + 7, y + 15);
  }

  zoom(factor) {
    const camera = this.renderer.getCamera();
    const how = { duration: still.matches ? 1 : 200 }; // sigma divides by it: with 0 the camera could be NaN for a frame
    if (factor == null) camera.animatedReset(how);
    else camera.animate({ ratio: camera.ratio * factor }, how);
  }

  end() {
    this.layout.stop();
    this.renderer.kill();
  }
}
