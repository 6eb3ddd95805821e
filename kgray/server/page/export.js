// The view as a file: PNG from the canvases, SVG drawn from the same positions.
import { themed } from "./colours.js";
import { tell } from "./parts.js";

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  tell(`Saved as ${name}.`);
}

export function savePicture(drawing) {
  if (!drawing) return;
  drawing.renderer.refresh(); // WebGL's picture is there until this task ends
  const layers = Object.values(drawing.renderer.getCanvases());
  const { width, height } = layers[0];
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  context.fillStyle = themed("ground");
  context.fillRect(0, 0, width, height);
  for (const layer of layers) if (layer.width) context.drawImage(layer, 0, 0, width, height);
  canvas.toBlob((blob) => save(blob, "kgray.png"));
}

const SVG = "http://www.w3.org/2000/svg";
function node(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text != null) made.textContent = text;
  return made;
}

/** The picture as an SVG element. */
export function asSvg(drawing) {
  drawing.renderer.refresh(); // a graph that has just been set has no positions yet
  const { width, height } = drawing.renderer.getDimensions();
  const ink = drawing.ink;
  const root = node("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif" });
  const head = node("marker", { id: "head", viewBox: "0 0 6 6", refX: 6, refY: 3, markerWidth: 7, markerHeight: 7, orient: "auto" });
  head.append(node("path", { d: "M0 0 6 3 0 6z", fill: ink.quiet }));
  const parts = node("defs", {});
  parts.append(head);
  root.append(parts, node("rect", { width, height, fill: ink.ground }));
  const at = (id) => drawing.renderer.framedGraphToViewport(drawing.renderer.getNodeDisplayData(id));
  drawing.graph.forEachEdge((id, _, source, target) => {
    const look = drawing.renderer.getEdgeDisplayData(id);
    if (!look || look.hidden) return;
    const [a, b] = [at(source), at(target)];
    const size = drawing.renderer.scaleSize(drawing.renderer.getNodeDisplayData(target).size);
    const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    const end = { x: b.x - ((b.x - a.x) / length) * size, y: b.y - ((b.y - a.y) / length) * size };
    const line = { x1: a.x, y1: a.y, x2: end.x, y2: end.y, stroke: look.color, "stroke-width": 1.4, "marker-end": "url(#head)" };
    root.append(node("line", look.dashed ? { ...line, "stroke-dasharray": "6 5" } : line));
    if (look.label) root.append(node("text", { x: (a.x + end.x) / 2, y: (a.y + end.y) / 2, "font-size": 10, fill: ink.quiet, "text-anchor": "middle" }, look.label));
  });
  drawing.graph.forEachNode((id) => {
    const look = drawing.renderer.getNodeDisplayData(id);
    if (look.hidden) return;
    const place = at(id);
    const size = drawing.renderer.scaleSize(look.size);
    root.append(node("circle", { cx: place.x, cy: place.y, r: size, fill: look.color }));
    if (look.label) root.append(node("text", { x: place.x + size + 3, y: place.y + 4, "font-size": 12, fill: ink.text }, look.label));
  });
  return root;
}

export function saveDrawing(drawing) {
  if (drawing) save(new Blob([new XMLSerializer().serializeToString(asSvg(drawing))], { type: "image/svg+xml" }), "kgray.svg");
}
