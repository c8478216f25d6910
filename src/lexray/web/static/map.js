// The map: heads and neurons are coloured as they are read; hovering reads, clicking opens.

import { ask, askJson, LEFT, run, waitingLine, withEnding } from "./run.js";

const map = document.getElementById("map");
const legend = document.getElementById("map-legend");
const tip = document.getElementById("tip");
const cells = new Map([...map.querySelectorAll("[data-head]")].map((a) => [a.dataset.head, a]));
const strips = [...map.querySelectorAll("[data-layer]")];
const colour = map.dataset.colour;
const ROLES = [
  "induction",
  "previous token",
  "duplicate",
  "copying",
  "anti-copying",
  "first token",
  "current token",
];
const KIND = { copying: 0, "anti-copying": 1, "previous token": 2, "first token": 3 };
Object.assign(KIND, { duplicate: 4, "current token": 5, induction: 6 });
const notes = new Map(); // what is said of a head in its tip

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const level = (share) => `w${Math.round(100 * Math.min(1, Math.max(0, share)))}`;

// ------------------------------------------------------------ heads

function paintKinds(kinds, order) {
  const counts = new Map();
  for (const [, name] of kinds) if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
  const names = [...counts.keys()].sort(
    (a, b) => order(a) - order(b) || counts.get(b) - counts.get(a),
  );
  const kindOf = (name) => KIND[name] ?? names.indexOf(name) % 8;
  for (const [head, name] of kinds)
    if (name) cells.get(head)?.classList.add(`kind-${kindOf(name)}`);
  const pressed = { name: null };
  const buttons = names.map((name) => {
    const sign = make("i", { class: `kind-${kindOf(name)}` });
    const button = make("button", { type: "button", "aria-pressed": "false" }, sign, name);
    button.append(make("span", { class: "quiet" }, String(counts.get(name))));
    button.addEventListener("click", () => {
      pressed.name = pressed.name === name ? null : name;
      for (const other of buttons)
        other.setAttribute("aria-pressed", String(other === button && pressed.name !== null));
      for (const [head, cell] of cells)
        cell.classList.toggle("dim", pressed.name !== null && !named(head, pressed.name));
    });
    return button;
  });
  const named = (head, name) => (notes.get(head) ?? []).includes(name);
  if (names.length) legend.replaceChildren(...buttons);
  else legend.replaceChildren("no head stands out by this");
}

function paintFigures(figures, say = (value) => `${colour} ${value.toFixed(2)}`) {
  const most = Math.max(...[...figures.values()].map(Math.abs), 1e-9);
  for (const [head, value] of figures) {
    const cell = cells.get(head);
    cell?.classList.add("scaled", level(Math.abs(value) / most));
    cell?.classList.toggle("against", value < 0);
    notes.set(head, [say(value)]);
  }
  legend.replaceChildren("0", make("span", { class: "ramp" }), most.toFixed(2));
}

const rowOf = (layer) =>
  map.querySelector(`[data-layer="${CSS.escape(layer)}"]`)?.closest("tr") ??
  [...map.querySelectorAll("tbody tr")].find((row) => row.textContent.trim() === layer);
const simple = (name) => (name.startsWith("token ") ? "some tokens before" : name);

// What an atlas has stored, in the form of what is worked out.
function fromRows(rows) {
  if (colour === "role") {
    const heads = new Map([...cells.keys()].map((address) => [address, { address, roles: [] }]));
    for (const row of rows) heads.get(row.address)?.roles.push(row);
    return { heads: [...heads.values()] };
  }
  if (colour === "relation") {
    const relations = {};
    for (const row of rows) {
      relations[row.relation] ??= { best: [] };
      relations[row.relation].best.push(row);
    }
    return { relations };
  }
  const column = { legibility: "vo_legibility", norm: "vo_norm" }[colour] ?? colour;
  return { heads: rows.map((row) => ({ address: row.address, [colour]: row[column] ?? 0 })) };
}

function paintHeads(given) {
  const content = given.rows ? fromRows(given.rows) : given;
  if (content.heads) {
    if (colour === "role") {
      const order = (name) => (ROLES.indexOf(name) + 8) % 8;
      const kinds = content.heads.map((head) => {
        const names = head.roles.map((role) => simple(role.role));
        notes.set(head.address, names);
        return [head.address, names.sort((a, b) => order(a) - order(b))[0] ?? null];
      });
      paintKinds(kinds, order);
    } else {
      paintFigures(new Map(content.heads.map((head) => [head.address, head[colour]])));
    }
  } else if (content.removed) {
    const owed = content.removed.map((each) => [each.component, -each.change]);
    const aim = `the logit of ${show(content.target)}`;
    const way = (value) => (value < 0 ? "raises" : "lowers");
    const size = (value) => Math.abs(value).toFixed(2);
    paintFigures(new Map(owed), (value) => `removing it ${way(value)} ${aim} by ${size(value)}`);
    legend.append(make("span", {}, `removing a head lowers ${aim}, or`));
    legend.append(make("span", { class: "ramp against" }), "raises it");
  } else if (content.relations) {
    const best = new Map();
    for (const [name, relation] of Object.entries(content.relations))
      for (const score of relation.best)
        if (score.q < 0.01 && score.sign === "writes") {
          notes.set(score.address, [...(notes.get(score.address) ?? []), name]);
          if ((best.get(score.address)?.share ?? 0) < score.share)
            best.set(score.address, { name, share: score.share });
        }
    paintKinds(
      [...best].map(([head, { name }]) => [head, name]),
      () => 0,
    );
  } else {
    const figures = new Map();
    for (const [layer, found] of Object.entries(content.layers)) {
      const own = [...(rowOf(layer)?.querySelectorAll("[data-head]") ?? [])];
      found.forEach((value, i) => {
        if (own[i]) figures.set(own[i].dataset.head, value);
      });
    }
    paintFigures(figures);
  }
}

async function readHeads() {
  if (!map.dataset.heads) {
    legend.textContent =
      "Type a prompt: each head is removed in turn, and what that does is shown.";
    map.dataset.ready = "heads";
    return;
  }
  const controller = new AbortController();
  const { line, see } = waitingLine(controller);
  legend.replaceChildren(line);
  addEventListener("pagehide", () => controller.abort(LEFT), { signal: controller.signal });
  try {
    await run(map.dataset.heads, { see, signal: controller.signal });
    const { content } = await askJson(withEnding(map.dataset.heads, "json"));
    paintHeads(content);
  } catch (error) {
    legend.textContent = error.name === "AbortError" ? "cancelled" : error.message;
  }
  map.dataset.ready = "heads";
}

// ------------------------------------------------------------ neurons

const ROWS = 8;
const figures = new Map();

function rgb(name) {
  const probe = make("span");
  probe.style.color = `var(--lx-${name})`;
  document.body.append(probe);
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g);
  probe.remove();
  return parts.map(Number);
}

// One scale for all layers, which grows as they come; the few largest of each do not stretch it.
const range = { low: Infinity, high: -Infinity };

function widenRange(found) {
  const sorted = Float64Array.from(found).sort();
  if (!sorted.length) return false;
  const low = Math.min(range.low, sorted[Math.floor(0.02 * sorted.length)]);
  const high = Math.max(range.high, sorted[Math.floor(0.995 * (sorted.length - 1))]);
  if (low === range.low && high === range.high) return false;
  Object.assign(range, { low, high });
  const say = (value) => Number(value.toPrecision(2)).toString();
  const scale = [say(low), make("span", { class: "ramp" }), say(high)];
  document.getElementById("strip-legend").replaceChildren(...scale);
  return true;
}

function paintStrip(strip) {
  const found = figures.get(strip);
  if (!found) return;
  const [cold, hot] = [rgb("cold"), rgb("hot")];
  const canvas = strip.querySelector("canvas");
  const columns = Math.max(1, Math.ceil(found.length / ROWS));
  canvas.width = columns;
  canvas.height = Math.min(ROWS, found.length);
  const image = new ImageData(columns, canvas.height);
  const { low, high } = range;
  found.forEach((value, i) => {
    const share = Math.min(1, Math.max(0, (value - low) / (high - low || 1))) ** 1.25;
    const at = 4 * ((i % ROWS) * columns + Math.floor(i / ROWS));
    for (let c = 0; c < 3; c += 1) image.data[at + c] = cold[c] + (hot[c] - cold[c]) * share;
    image.data[at + 3] = 255;
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

async function readNeurons() {
  for (const strip of strips) {
    const address = `${map.dataset.neurons}${map.dataset.neurons.includes("?") ? "&" : "?"}`;
    try {
      const { content } = await askJson(
        withEnding(`${address}layer=${strip.dataset.layer}`, "json"),
      );
      const found = content.rows?.map((row) => row.figure ?? 0);
      figures.set(strip, found ?? Object.values(content.layers)[0]);
      const wider = widenRange(figures.get(strip));
      for (const each of wider ? strips : [strip]) paintStrip(each);
    } catch (error) {
      strip.title = error.message;
    }
  }
  map.dataset.ready = "all";
  await listBest();
}

// The neurons whose lists read best, in words: where to begin.
const BEST = 12;

async function listBest() {
  if (!map.dataset.neurons.includes("legibility") && map.dataset.neurons.includes("neurons="))
    return;
  const all = strips.flatMap((strip) =>
    (figures.get(strip) ?? []).map((value, i) => ({ value, address: nameOf(strip, i) })),
  );
  const best = all.sort((a, b) => b.value - a.value).slice(0, BEST);
  const list = make("ol", { class: "found" });
  const found = document.getElementById("map-found");
  found.append(make("h2", {}, "Neurons that read best"));
  found.append(make("p", { class: "note" }, "What each writes; · is a space."), list);
  for (const { address, value } of best) {
    const link = make("a", { class: "addr", href: `/${base}/${address}${tail}` }, address);
    const words = make("ol", { class: "words" });
    try {
      for (const token of await fetchTokens(address, 12)) {
        const chip = make("a", { class: "tok", href: `/${base}/token/${token.id}${tail}` });
        chip.textContent = show(token);
        words.append(make("li", {}, chip));
      }
    } catch (error) {
      words.append(error.message);
    }
    const who = make("span", { class: "who" }, link);
    const figure = make("span", { class: "figure", title: "legibility" }, value.toFixed(2));
    list.append(make("li", {}, who, make("div", {}, words), figure));
  }
  map.dataset.ready = "listed";
}

function nameOf(strip, index) {
  let left = index;
  for (const group of strip.dataset.groups.split(";")) {
    const [prefix, n] = group.split(":");
    if (left < Number(n)) return `${prefix}${left}`;
    left -= Number(n);
  }
  return null;
}

function neuronAt(strip, event) {
  const found = figures.get(strip);
  if (!found) return null;
  const box = strip.getBoundingClientRect();
  const columns = Math.ceil(found.length / ROWS);
  const rows = Math.min(ROWS, found.length);
  const x = Math.floor(((event.clientX - box.left) / box.width) * columns);
  const y = Math.floor(((event.clientY - box.top) / box.height) * rows);
  const index = x * ROWS + y;
  if (x < 0 || y < 0 || index >= found.length) return null;
  return { address: nameOf(strip, index), value: found[index] };
}

// ------------------------------------------------------------ hovering reads

let wanted = "";
const read = new Map();

function placeTip(x, y) {
  tip.hidden = false;
  const { offsetWidth: w, offsetHeight: h } = tip;
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - w - 8))}px`;
  tip.style.top = `${y + 18 + h > innerHeight ? Math.max(8, y - h - 12) : y + 18}px`;
}

const base = location.pathname.split("/")[1];
const view = new URLSearchParams(location.search).get("view");
const tail = view ? `?view=${view}` : "";

async function fetchWords(address, isHead) {
  const part = isHead ? "vo" : "readings";
  const query = `?k=6${view ? `&view=${view}` : ""}`;
  const text = await ask(`/${base}/${address}/${part}.json${query}`);
  const { content } = JSON.parse(text);
  if (isHead && content.rows)
    return content.rows.map((row) => `${row.row_shown} → ${row.col_shown}`);
  if (isHead) return content.pairs.map((pair) => `${show(pair.row)} → ${show(pair.col)}`);
  return tokensOf(content).map(show);
}

async function fetchTokens(address, k) {
  const query = `?k=${k}${view ? `&view=${view}` : ""}`;
  const { content } = await askJson(`/${base}/${address}/readings.json${query}`);
  return tokensOf(content);
}

// What a neuron writes, worked out or stored.
function tokensOf(content) {
  const stored = content.rows?.find((row) => row.kind === "value");
  if (stored) return stored.top_ids.map((id, i) => ({ id, text: stored.top_words[i] }));
  return (content.value?.top ?? []).map((each) => each.token);
}

const show = (token) => token.text.replace(/^ /, "·").replace(/\n/g, "↵").replace(/\t/g, "⇥");

function fillTip(address, said, words) {
  const list = make("ol", { class: "words" });
  for (const word of words) list.append(make("li", {}, make("span", { class: "tok" }, word)));
  tip.replaceChildren(make("b", {}, address));
  tip.append(make("p", { class: "note" }, said || " "), list);
}

async function hover(address, said, isHead, x, y) {
  if (wanted !== address) {
    wanted = address;
    fillTip(address, said, read.get(address) ?? ["…"]);
  }
  placeTip(x, y);
  if (read.has(address)) return;
  await new Promise((done) => setTimeout(done, 140));
  if (wanted !== address || read.has(address)) return;
  try {
    read.set(address, await fetchWords(address, isHead));
  } catch (error) {
    read.set(address, [error.message]);
  }
  if (wanted !== address) return;
  fillTip(address, said, read.get(address));
  placeTip(x, y);
}

function leave() {
  wanted = "";
  tip.hidden = true;
}

for (const [head, cell] of cells) {
  const said = () => (notes.get(head) ?? []).join(", ");
  cell.addEventListener("pointermove", (event) =>
    hover(head, said(), true, event.clientX, event.clientY),
  );
  cell.addEventListener("pointerleave", leave);
  cell.addEventListener("focus", () => {
    const box = cell.getBoundingClientRect();
    if (cell.matches(":focus-visible")) hover(head, said(), true, box.right, box.bottom - 12);
  });
  cell.addEventListener("blur", leave);
}
for (const strip of strips) {
  strip.addEventListener("pointermove", (event) => {
    const found = neuronAt(strip, event);
    if (found)
      hover(
        found.address,
        `writes · ${found.value.toFixed(2)}`,
        false,
        event.clientX,
        event.clientY,
      );
    else leave();
  });
  strip.addEventListener("pointerleave", leave);
  strip.addEventListener("click", (event) => {
    const found = event.detail ? neuronAt(strip, event) : null;
    if (!found) return;
    event.preventDefault();
    location.href = `/${base}/${found.address}${tail}`;
  });
}
for (const query of ["(prefers-color-scheme: dark)", "print"])
  matchMedia(query).addEventListener("change", () => {
    for (const strip of strips) paintStrip(strip);
  });
await readHeads();
readNeurons();
