// A block laid out again when filters have taken boxes away: columns that are left close up, boxes in
// them stand as near to one another as before, lines follow. Coordinates as in lexray.flow.draw.block.

import { STREAM } from "./graph.js";

const LEAD = 32; // before the first column and after the last
const [GAP, FAN] = [36, 64]; // between columns; between one box and many
const [ROW, BODY, PANEL] = [5, 112, 16];

const middle = (box) => box[2] + box[4] / 2;
const tenth = (value) => Math.round(value * 10) / 10;

// Where a path begins and ends.
function ends(path) {
  const numbers = path.match(/-?[\d.]+/g).map(Number);
  const start = [numbers[0], numbers[1]];
  const level = path.match(/H(-?[\d.]+)$/);
  if (!level) return [start, numbers.slice(-2)];
  const bend = path.match(/C[^H]*?(-?[\d.]+)H/);
  return [start, [Number(level[1]), bend ? Number(bend[1]) : start[1]]];
}

function curve([x1, y1], [x2, y2]) {
  const [a, b, c, d] = [x1, y1, x2, y2].map(tenth);
  const half = tenth((x1 + x2) / 2);
  return b === d ? `M${a} ${b}H${c}` : `M${a} ${b}C${half} ${b} ${half} ${d} ${c} ${d}`;
}

// The columns that are left, from left to right, each from top to bottom.
function columnsOf(boxes) {
  const sorted = [...boxes].sort((a, b) => a[1] + a[3] / 2 - b[1] - b[3] / 2);
  const columns = [];
  for (const box of sorted) {
    const at = box[1] + box[3] / 2;
    const last = columns[columns.length - 1];
    if (last && at - last.at < 20) last.boxes.push(box);
    else columns.push({ at, boxes: [box] });
  }
  for (const { boxes: own } of columns) own.sort((a, b) => middle(a) - middle(b));
  return columns;
}

// Parts stand side by side and share a middle, or, in parallel blocks, one below the other.
function place(columns, partOf) {
  const isStream = (box) => partOf(box) === null;
  const below = (column) => column.boxes.filter((box) => !isStream(box));
  const of = (column, part) => column.boxes.filter((box) => partOf(box) === part);
  const high = (own) => own.reduce((sum, box) => sum + box[4] + ROW, -ROW);
  const parts = [...new Set(columns.flatMap(below).map(partOf))].sort((a, b) => a - b);
  const middles = new Map();
  let bottom = BODY;
  for (const part of parts) {
    const tallest = Math.max(0, ...columns.map((column) => high(of(column, part))));
    const start = middles.size ? bottom + 0.75 * BODY : BODY;
    middles.set(part, start + tallest / 2);
    bottom = start + tallest;
  }
  const moved = new Map();
  let x = LEAD;
  columns.forEach((column, c) => {
    const wide = Math.max(...column.boxes.map((box) => box[3]));
    const own = below(column);
    const y = new Map([...middles].map(([part, at]) => [part, at - high(of(column, part)) / 2]));
    for (const box of column.boxes) {
      const part = partOf(box);
      const left = x + (wide - box[3]) / 2;
      const top = part === null ? box[2] : y.get(part);
      if (part !== null) y.set(part, top + box[4] + ROW);
      const [dx, dy] = [left - box[1], top - box[2]];
      const labels = box[5].map(([a, b, ...rest]) => [tenth(a + dx), tenth(b + dy), ...rest]);
      moved.set(box[0], [box[0], tenth(left), tenth(top), box[3], box[4], labels]);
    }
    const next = columns[c + 1];
    const many = next && Math.max(own.length, below(next).length);
    x += wide + (many >= 6 && Math.min(own.length, below(next).length) <= 2 ? FAN : GAP);
  });
  return { moved, width: x - GAP + LEAD, bottom };
}

const stands = (box, panel) =>
  box[1] >= panel[0] &&
  box[1] + box[3] <= panel[0] + panel[2] + 1 &&
  box[2] >= panel[1] &&
  box[2] + box[4] <= panel[1] + panel[3] + 1;

// Whether one part hangs below another.
const stacked = (form) => new Set(form.panels.map((panel) => panel[1])).size > 1;

function movePanels(form, moved) {
  const found = form.panels.flatMap((panel) => {
    const inside = form.boxes.filter((box) => moved.has(box[0]) && stands(box, panel));
    const own = inside.map((box) => moved.get(box[0]));
    if (!own.length) return [];
    const left = Math.min(...own.map((box) => box[1])) - PANEL;
    const right = Math.max(...own.map((box) => box[1] + box[3])) + PANEL;
    const top = Math.min(...own.map((box) => box[2])) - 62;
    const bottom = Math.max(...own.map((box) => box[2] + box[4])) + PANEL;
    return [{ old: panel, now: [left, top, right - left, bottom - top, panel[4]] }];
  });
  if (stacked(form) || !found.length) return found;
  const top = Math.min(...found.map(({ now }) => now[1]));
  const bottom = Math.max(...found.map(({ now }) => now[1] + now[3]));
  return found.map(({ old, now }) => ({
    old,
    now: [now[0], top, now[2], bottom - top, now[4]],
  }));
}

// Titles to the middle, a part's name to its panel, a heading above the box that it stood above.
function moveLabels(form, moved, panels, width) {
  return form.labels.flatMap((label) => {
    const [x, y, role, ...rest] = label;
    if (role === "title") return [[width / 2, y, role, ...rest]];
    if (role === "part") {
      const near = (old) => Math.abs(old[0] + 14 - x) < 1 && Math.abs(old[1] + 24 - y) < 1;
      const own = panels.find(({ old }) => near(old));
      return own ? [[own.now[0] + 14, own.now[1] + 24, role, ...rest]] : [];
    }
    const column = form.boxes.filter((box) => Math.abs(box[1] + 2 - x) < 1 && box[2] > y);
    const first = column.find((box) => moved.has(box[0]));
    if (!first) return [];
    const own = column.filter((box) => moved.has(box[0])).map((box) => moved.get(box[0]));
    const top = own.reduce((a, b) => (b[2] < a[2] ? b : a));
    return [[top[1] + 2, top[2] - 9, role, ...rest]];
  });
}

// The form without what is gone, closed up.
export function relay(form, gone, graph) {
  const left = form.boxes.filter((box) => !gone.nodes.has(box[0]));
  if (!left.length) return form;
  const tiers = stacked(form) ? form.panels : [];
  const partOf = (box) =>
    STREAM.has(graph.nodes[box[0]].kind)
      ? null
      : Math.max(
          0,
          tiers.findIndex((panel) => stands(box, panel)),
        );
  const { moved, width, bottom } = place(columnsOf(left), partOf);
  const panels = movePanels(form, moved);
  const wires = form.wires.flatMap(([e, path]) => {
    if (gone.edge(e)) return [];
    const edge = graph.edges[e];
    const [from, to] = [edge.source, edge.target].map((id) => moved.get(graph.index.get(id)));
    const [start, stop] = ends(path);
    const a = from ? [from[1] + from[3], middle(from)] : start;
    const b = to ? [to[1], middle(to)] : [width, stop[1]];
    return [[e, curve(a, b)]];
  });
  return {
    width,
    bottom: Math.max(bottom, ...panels.map(({ now }) => now[1] + now[3])),
    boxes: [...moved.values()],
    wires,
    panels: panels.map(({ now }) => now),
    labels: moveLabels(form, moved, panels, width),
  };
}
