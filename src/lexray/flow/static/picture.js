// The picture: draws the shapes that lexray.flow.draw.layout has placed, and moves about in them.

import { cardShare, mix } from "./graph.js";
import { relay } from "./relay.js";

const SVG = "http://www.w3.org/2000/svg";
const HEAVY = 2000; // boxes and lines on screen; more are not drawn anew for every frame

export const SIDE = 30; // what is left free beside the picture

const short = (value) => String(Math.round(value * 10) / 10);

export function draw(name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

export function freePath(x1, y1, x2, y2) {
  const [a, b, c, d, middle] = [x1, y1, x2, y2, (x1 + x2) / 2].map(short);
  return `M${a} ${b}C${middle} ${b} ${middle} ${d} ${c} ${d}`;
}

export class Picture {
  constructor(graph, svg, state) {
    this.graph = graph;
    this.svg = svg;
    this.state = state;
    this.layout = graph.data.layout;
    this.text = graph.data.text;
    this.bold = new Set(this.text.bold);
    this.world = draw("g", { class: "lf-world" });
    this.bands = draw("g");
    this.free = draw("g");
    this.foldGroup = draw("g");
    this.againGroup = draw("g");
    this.wide = Number.POSITIVE_INFINITY;
    this.groups = this.layout.segments.map(() => draw("g", { class: "lf-segment" }));
    this.world.append(this.bands, this.free, this.againGroup, ...this.groups, this.foldGroup);
    svg.setAttribute("font-family", this.text.font);
    svg.append(this.world);
    this.boxes = new Map();
    this.again = new Map(); // stations drawn once more, where a row begins
    this.wires = new Map();
    this.drawn = this.groups.map(() => null);
    this.leaveOut(null);
  }

  // Runs of at least two quiet blocks, none open or unfolded: which segments they take away.
  findFolds() {
    const { segments, quiet } = this.layout;
    const shut = new Set(quiet.filter((l) => !this.state.open.has(l) && !this.state.loud.has(l)));
    const runs = [];
    let run = [];
    const close = () => {
      if (run.length > 1) runs.push(run);
      run = [];
    };
    segments.forEach((segment, i) => {
      if (segment.kind !== "block") return;
      if (shut.has(segment.layer)) run.push(i);
      else close();
    });
    close();
    this.folds = new Map(runs.map((own) => [own[0], own[own.length - 1]]));
    this.folded = segments.map(() => false);
    for (const [first, last] of this.folds) this.folded.fill(true, first, last + 1);
  }

  foldElement(first, last, [x, y]) {
    const { segments, fold } = this.layout;
    const layers = [segments[first].layer, segments[last].layer];
    const quiet = segments.slice(first, last + 1).filter((s) => s.kind === "block");
    const group = draw("g", {
      class: "lf-title lf-fold",
      "data-fold": quiet.map((s) => s.layer).join("."),
      tabindex: 0,
      role: "button",
      "aria-description": `layers ${layers.join(" to ")}, quiet: show them`,
      transform: `translate(${short(x)} ${short(y)})`,
    });
    group.append(
      draw("rect", { x: 2, y: -64, width: fold - 4, height: 40, rx: 12 }),
      this.label([fold / 2, -46, "heading", layers.join("–"), "middle"]),
      this.label([fold / 2, -30, "heading", `${quiet.length} quiet`, "middle"]),
    );
    return group;
  }

  form(i) {
    const segment = this.layout.segments[i];
    const open = segment.open && this.state.open.has(segment.layer);
    if (!open) return segment.closed;
    if (!this.gone) return segment.open;
    if (!this.relaid.has(i)) this.relaid.set(i, relay(segment.open, this.gone, this.graph));
    return this.relaid.get(i);
  }

  // Lays open blocks out again without these nodes and edges; with null as they were.
  leaveOut(gone) {
    this.gone = gone;
    this.relaid = new Map();
  }

  // Where every segment stands: rows as in lexray.flow.draw.layout, at most `wide` (or as wide as a
  // block); each but the first begins with the station that ended the row above.
  findPlaces() {
    const { segments, fold, top, between } = this.layout;
    const places = [];
    const repeats = [];
    const rows = [];
    let [x, y, bottom, station, filled] = [0, 0, 0, null, false];
    const end = () => rows.push({ y, width: x, bottom: y + bottom });
    segments.forEach((segment, i) => {
      const inside = this.folded[i] && !this.folds.has(i);
      const last = this.folds.get(i) ?? i;
      const width = inside ? 0 : this.folded[i] ? fold : this.form(i).width;
      const next = segments[last + 1]?.kind === "station" ? this.form(last + 1).width : 0;
      const full = segment.kind === "block" && !inside && x + width + next > this.wide;
      if (full && filled && station !== null) {
        end();
        y += bottom - top + between;
        repeats.push({ of: station, y });
        const form = this.form(station);
        [x, bottom] = [form.width, form.bottom];
      }
      places.push([x, y]);
      if (inside) return;
      filled ||= segment.kind === "block";
      station = segment.kind === "station" ? i : null;
      if (!this.folded[i]) bottom = Math.max(bottom, this.form(i).bottom);
      x += width;
    });
    end();
    return { places, repeats, rows };
  }

  // Draws what has changed its form and puts everything in its place.
  arrange() {
    this.findFolds();
    const { places, repeats, rows } = this.findPlaces();
    this.places = places;
    this.rows = rows;
    const folds = [];
    this.groups.forEach((group, i) => {
      if (this.folded[i]) {
        if (this.folds.has(i)) folds.push(this.foldElement(i, this.folds.get(i), places[i]));
        this.empty(group);
        group.replaceChildren();
        this.drawn[i] = null;
        return;
      }
      const form = this.form(i);
      group.setAttribute("transform", `translate(${places[i].map(short).join(" ")})`);
      if (this.drawn[i] !== form) this.fill(group, i, form);
    });
    this.foldGroup.replaceChildren(...folds);
    this.repeat(repeats);
    const { top, band } = this.layout;
    this.bounds = {
      x: -SIDE,
      y: top,
      width: Math.max(...rows.map((row) => row.width)) + 2 * SIDE,
      height: rows[rows.length - 1].bottom - top + 12,
    };
    const bands = rows.map(({ y, width }) => {
      const size = { width: short(width), height: band, rx: band / 2 };
      return draw("rect", { class: "lf-stream", x: 0, y: short(y - band / 2), ...size });
    });
    this.bands.replaceChildren(...bands);
    this.drawFree();
  }

  repeat(repeats) {
    this.again.clear();
    const groups = repeats.map(({ of, y }) => {
      const group = draw("g", { class: "lf-again", transform: `translate(0 ${short(y)})` });
      for (const box of this.form(of).boxes) {
        this.again.set(box[0], this.boxElement(box));
        group.append(this.again.get(box[0]));
      }
      return group;
    });
    this.againGroup.replaceChildren(...groups);
  }

  // How wide rows may be; whether that changes anything.
  setWide(wide) {
    const before = JSON.stringify(this.places ?? []);
    this.wide = wide;
    this.findFolds();
    return before !== JSON.stringify(this.findPlaces().places);
  }

  // Every box with its node, those that are there twice twice.
  *everyBox() {
    yield* this.boxes;
    yield* this.again;
  }

  elementsOf(node) {
    return [this.boxes.get(node), this.again.get(node)].filter(Boolean);
  }

  // Forgets what a group has drawn.
  empty(group) {
    for (const element of group.querySelectorAll("[data-node]"))
      this.boxes.delete(Number(element.dataset.node));
    for (const element of group.querySelectorAll("[data-edge]"))
      this.wires.delete(Number(element.dataset.edge));
  }

  fill(group, i, form) {
    this.empty(group);
    const parts = [];
    for (const [x, y, width, height, part] of form.panels)
      parts.push(
        draw("rect", { class: `lf-ground lf-ground-${part}`, x, y, width, height, rx: 14 }),
      );
    for (const [edge, path] of form.wires) parts.push(this.wireElement(edge, path));
    for (const box of form.boxes) {
      this.boxes.set(box[0], this.boxElement(box));
      parts.push(this.boxes.get(box[0]));
    }
    for (const label of form.labels)
      parts.push(label[2] === "title" ? this.titleElement(label, i) : this.label(label));
    group.replaceChildren(...parts);
    this.drawn[i] = form;
  }

  wireElement(edge, path) {
    const dashed = this.graph.edges[edge].kind === "others" ? { "stroke-dasharray": "4 3" } : {};
    const element = draw("path", { class: "lf-wire", d: path, "data-edge": edge, ...dashed });
    this.wires.set(edge, element);
    return element;
  }

  boxElement([index, x, y, width, height, labels]) {
    const node = this.graph.nodes[index];
    const group = draw("g", {
      class: `lf-box lf-${height > 30 ? "card" : "pill"}`,
      "data-node": index,
      tabindex: 0,
      role: "button",
    });
    const rect = draw("rect", { x, y, width, height, rx: Math.min(9, height / 2) });
    if (node.kind === "others") rect.setAttribute("stroke-dasharray", "4 3");
    group.append(rect, ...labels.map((label) => this.label(label)));
    return group;
  }

  titleElement(label, i) {
    const segment = this.layout.segments[i];
    if (!segment.open) return this.label(label);
    const open = this.drawnOpen(i);
    const group = draw("g", {
      class: "lf-title",
      "data-layer": segment.layer,
      tabindex: 0,
      role: "button",
      "aria-expanded": String(open),
      "aria-label": `layer ${segment.layer}, ${open ? "open: close it" : "closed: open it"}`,
    });
    const wide = open ? 124 : 60;
    group.append(
      draw("rect", { x: label[0] - wide / 2, y: label[1] - 19, width: wide, height: 27, rx: 13.5 }),
      this.label(label),
      draw("path", {
        class: "lf-chevron",
        d: open
          ? `M${label[0] - 46} ${label[1] - 8}l4 4l4 -4`
          : `M${label[0] + 16} ${label[1] - 9}l4 4l-4 4`,
      }),
    );
    return group;
  }

  drawnOpen(i) {
    return this.form(i) !== this.layout.segments[i].closed;
  }

  label([x, y, role, text, anchor]) {
    const attributes = { class: `lf-${role}`, x, y, "font-size": this.text.sizes[role] };
    if (this.bold.has(role)) attributes["font-weight"] = 600;
    if (role in this.text.quiet) attributes["fill-opacity"] = this.text.quiet[role];
    if (anchor !== "start") attributes["text-anchor"] = anchor;
    return draw("text", attributes, text);
  }

  // Edges between segments, which follow their nodes wherever these go.
  drawFree() {
    const where = new Map();
    this.groups.forEach((_, i) => {
      if (this.folded[i]) return;
      const [left, top] = this.places[i];
      for (const [node, x, y, width, height] of this.form(i).boxes)
        where.set(node, {
          left: left + x,
          right: left + x + width,
          middle: top + y + height / 2,
        });
    });
    const parts = [];
    for (const e of this.layout.free) {
      const edge = this.graph.edges[e];
      const a = where.get(this.graph.index.get(edge.source));
      const b = where.get(this.graph.index.get(edge.target));
      this.wires.delete(e);
      if (a && b) parts.push(this.wireElement(e, freePath(a.right, a.middle, b.left, b.middle)));
    }
    this.free.replaceChildren(...parts);
  }

  paint(colours) {
    const { paint } = this.graph.data;
    const target = this.state.target;
    for (const [index, group] of this.everyBox()) {
      const node = this.graph.nodes[index];
      const fill = this.graph.fill(node, colours, target, paint.contrast);
      const rect = group.firstChild;
      rect.setAttribute("fill", fill);
      rect.setAttribute("stroke", mix(fill, colours.ink, 0.16));
      const share = group.querySelector(".lf-share");
      if (share) share.textContent = node.reading ? cardShare(node.reading.places[target][1]) : "";
      group.setAttribute("aria-description", this.describe(node)); // its name is what is written
    }
    for (const [index, path] of this.wires) {
      const style = this.graph.wire(this.graph.edges[index], colours, paint);
      path.setAttribute("stroke", style.colour);
      path.setAttribute("stroke-width", style.width.toFixed(2));
      path.setAttribute("stroke-opacity", style.opacity);
      path.classList.toggle("lf-thin", style.width < 2);
    }
  }

  describe(node) {
    const top =
      (node.reading ?? node.other)?.top.slice(0, 5).map(([id]) => this.graph.word(id)) ?? [];
    const place = node.reading?.places[this.state.target];
    const word = this.graph.raw.candidates[this.state.target].shown;
    const rank = place ? `; ${word} at rank ${place[0]}` : "";
    return `${this.graph.said.nodes[node.kind].name}, ${node.id}: ${top.join(", ")}${rank}`;
  }

  // Draws for a view. Only what is on screen or near it is drawn, and text where it can be read.
  move({ x, y, k }, { width, height }) {
    this.shown = { x, y, k };
    this.svg.style.transform = this.svg.style.willChange = "";
    this.world.setAttribute(
      "transform",
      `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${k.toFixed(5)})`,
    );
    const near = (from, to, start, size, margin) =>
      from <= (size + margin - start) / k + 60 && to >= (-margin - start) / k - 60;
    const within = (i, margin) => {
      const [left, top] = this.places[i];
      const { width: wide, bottom } = this.form(i);
      const across = near(left, left + wide, x, width, margin);
      return across && near(top + this.layout.top, top + bottom, y, height, margin);
    };
    const seen = this.groups.map((_, i) =>
      within(i, 0) && !this.folded[i] ? this.form(i) : { boxes: [], wires: [] },
    );
    const size = seen.reduce((sum, { boxes, wires }) => sum + boxes.length + wires.length, 0);
    this.heavy = size > HEAVY;
    this.groups.forEach((group, i) => {
      const out = !within(i, this.heavy ? width : 0);
      if (group.lfOut !== out) {
        group.lfOut = out;
        group.style.display = out ? "none" : "";
      }
    });
    const detail = k < 0.2 ? "lf-tiny" : k < 0.34 ? "lf-small" : "";
    if (this.detail !== detail) {
      this.svg.classList.remove("lf-tiny", "lf-small");
      if (detail) this.svg.classList.add(detail);
      this.detail = detail;
    }
  }

  // Large pictures in motion: what is drawn already is moved as an image, and drawn again at rest.
  slide({ x, y, k }) {
    const ratio = k / this.shown.k;
    this.svg.style.willChange = "transform";
    this.svg.style.transform = `translate(${x - this.shown.x * ratio}px, ${y - this.shown.y * ratio}px) scale(${ratio})`;
  }

  // Where a node or a segment is, in the picture's coordinates.
  boxOf(node) {
    const i = this.graph.segmentOf.get(node);
    const box =
      i === undefined || this.folded[i] ? null : this.form(i).boxes.find((b) => b[0] === node);
    if (!box) return null;
    const [x, y] = this.places[i];
    return { x: x + box[1], y: y + box[2], width: box[3], height: box[4] };
  }
}
