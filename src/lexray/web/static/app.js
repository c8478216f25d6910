// What all pages share: sections that fill by themselves, copying, keys. Nothing is sent elsewhere.

import { ask, LEFT, run, waitingLine, withEnding } from "./run.js";

const said = document.getElementById("said");

function tell(words) {
  said.textContent = words;
  said.classList.add("shown");
  setTimeout(() => said.classList.remove("shown"), 1800);
}

// ------------------------------------------------------------ sections

async function swap(section, address = section.dataset.part, isWanted = () => true) {
  const text = await ask(withEnding(address, "part"));
  const next = new DOMParser().parseFromString(text, "text/html").querySelector("section");
  if (!next) throw new Error("the section is empty");
  if (!isWanted()) return;
  const turned = section.contains(document.activeElement) && "[data-offset]";
  section.replaceWith(next);
  if (turned) next.querySelector(turned)?.focus();
  fill(next);
}

async function load(section) {
  const controller = new AbortController();
  const { line, see } = waitingLine(controller);
  const body = section.querySelector(".body");
  section.querySelector("[data-run]")?.remove();
  section.setAttribute("aria-busy", "true");
  body.append(line);
  addEventListener("pagehide", () => controller.abort(LEFT), { signal: controller.signal });
  try {
    await run(section.dataset.part, { see, signal: controller.signal });
    await swap(section);
  } catch (error) {
    section.removeAttribute("aria-busy");
    const again = document.createElement("button");
    again.type = "button";
    again.dataset.run = "";
    again.textContent = "try again";
    const words = document.createElement("p");
    words.className = error.name === "AbortError" ? "note" : "failed";
    words.textContent = error.name === "AbortError" ? "cancelled" : error.message;
    body.replaceChildren(words, again);
    again.addEventListener("click", () => load(section), { once: true });
  }
}

// A grid that is wider than its frame begins where one looks.
function reveal(section) {
  const here = section.querySelector(".scroll .here");
  const frame = here?.closest(".scroll");
  if (frame) frame.scrollLeft = here.offsetLeft + here.offsetWidth - frame.clientWidth + 8;
}

function fill(root) {
  const found = root.matches?.("section") ? [root] : [...root.querySelectorAll("section")];
  for (const section of found) {
    reveal(section);
    const when = section.dataset.when;
    if (when === "now" || when === "soon") load(section);
    const button = section.querySelector("[data-run]");
    button?.addEventListener("click", () => load(section), { once: true });
  }
}

// ------------------------------------------------------------ copying

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    tell(button.title.replace("copy", "copied"));
  } catch {
    const box = document.createElement("textarea");
    box.value = button.dataset.copy;
    button.after(box);
    box.select();
    tell("copy it from the box");
  }
});

// ------------------------------------------------------------ a token that is typed, an offset that is turned

function later(action, time) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), time);
  };
}

function addressWith(changes) {
  const here = new URL(location.href);
  for (const [key, value] of Object.entries(changes))
    if (value) here.searchParams.set(key, value);
    else here.searchParams.delete(key);
  return here.pathname + here.search;
}

async function replaceSections(address) {
  const text = await ask(address);
  const page = new DOMParser().parseFromString(text, "text/html");
  const next = page.querySelector(".sections");
  const now = document.querySelector(".sections");
  if (!next || !now) return;
  const kept = new Map([...now.children].map((section) => [section.dataset.part, section]));
  const byName = (section) => kept.get(section.dataset.part);
  now.replaceChildren(...[...next.children].map((section) => byName(section) ?? section));
  for (const section of now.children) if (!kept.has(section.dataset.part)) fill(section);
  const handles = document.querySelector(".handles");
  handles?.replaceWith(page.querySelector(".handles"));
}

for (const form of document.querySelectorAll("[data-live]")) {
  const turn = later(async () => {
    const address = addressWith(Object.fromEntries(new FormData(form)));
    try {
      await replaceSections(address);
      history.replaceState(null, "", address);
    } catch (error) {
      tell(error.message);
    }
  }, 350);
  form.addEventListener("input", turn);
}

let turns = 0;
const turnOffset = later(async (input) => {
  turns += 1;
  const mine = turns; // an answer that comes late does not undo a later turn
  const value = Number(input.value);
  const address = addressWith({ offset: value === 0 ? "" : String(value) });
  history.replaceState(null, "", address);
  const section = document.getElementById(input.closest("section").id);
  const [path] = section.dataset.part.split("?");
  const query = address.split("?")[1];
  try {
    await swap(section, path + (query ? `?${query}` : ""), () => mine === turns);
  } catch (error) {
    tell(error.message);
  }
}, 200);

document.addEventListener("input", (event) => {
  const input = event.target.closest("[data-offset]");
  if (!input) return;
  const value = Number(input.value);
  input.closest("label").querySelector("output").textContent =
    value === 0 ? "the same place" : `${-value} before`;
  turnOffset(input);
});

document.getElementById("model")?.addEventListener("change", (event) => {
  location.href = event.target.value;
});

// ------------------------------------------------------------ keys

const ITEMS =
  ".found > li, .pairs > li, .directions > li, .snippets > li, .map tbody tr, .lens tbody tr";

function move(by) {
  const items = [...document.querySelectorAll(ITEMS)].filter((item) => item.querySelector("a"));
  const at = items.findIndex((item) => item.contains(document.activeElement));
  const next = items[Math.min(items.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  next?.querySelector("a.cell, a")?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const keys = document.getElementById("keys");
const model = location.pathname.split("/")[1];
const actions = {
  "/": () => document.getElementById("find")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  m: () => document.querySelector(`.bar nav a[href^="/${model}/map"]`)?.click(),
  p: () => document.querySelector(`.bar nav a[href^="/${model}/prompt"]`)?.click(),
  "?": () => keys?.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, textarea, select, [contenteditable], .lexray-flow");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const marked = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  const action = actions[event.key] ?? (marked && (() => marked.click()));
  if (!action) return;
  event.preventDefault();
  action();
});

fill(document);
