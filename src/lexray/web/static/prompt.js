// A prompt's drawings: attention and the flow graph, and the links that change what is chosen there.

import { show as showAttention } from "./attention.js";
import { show as showFlow } from "./flow.js";
import { askJson } from "./run.js";

const WAYS = [
  ["remove", (at) => `ablate ${at}`],
  ["× 2", (at) => `scale ${at} by 2`],
  ["× −1", (at) => `scale ${at} by -1`],
];

function offer(section, address) {
  const line = document.getElementById(`${section}-chosen`);
  if (!line) return;
  line.replaceChildren();
  const whole = address.match(/^(enc\.)?L\d+(E\d+|S)?[HXN]\d+/)?.[0];
  if (!whole) return;
  const base = location.pathname.split("/")[1];
  const name = document.createElement("a");
  name.className = "addr";
  name.href = `/${base}/${whole}`;
  name.textContent = whole;
  const ways = document.createElement("span");
  ways.className = "ways";
  const clamp = /N\d+$/.test(whole) ? [["clamp", (at) => `clamp ${at} to 8`]] : [];
  for (const [text, make] of [...WAYS, ...clamp]) {
    const here = new URL(location.href);
    const now = here.searchParams.get("edits");
    here.searchParams.set("edits", now ? `${now}; ${make(whole)}` : make(whole));
    const link = document.createElement("a");
    link.href = here.pathname + here.search;
    link.textContent = text;
    link.title = make(whole);
    ways.append(link);
  }
  line.append(name, " ", ways);
}

function keep(key, value) {
  const here = new URL(location.href);
  here.searchParams.set(key, value);
  history.replaceState(null, "", here.pathname + here.search + here.hash);
}

async function draw(element) {
  if (element.dataset.drawn) return;
  element.dataset.drawn = "yes";
  const section = element.closest("section").id;
  try {
    const data = await askJson(element.dataset.from);
    if (element.dataset.draw === "attention") {
      const head = new URLSearchParams(location.search).get("head");
      let first = true;
      showAttention(element, data, {
        head,
        onHead: (name) => {
          if (!first) keep("head", name);
          first = false;
          offer(section, name);
        },
      });
    } else {
      const addresses = new Map(data.graph.nodes.map((node) => [node.id, node.address ?? ""]));
      showFlow(element, data, {
        hash: true,
        onSelect: (id) => offer(section, addresses.get(id) ?? ""),
      });
    }
  } catch (error) {
    element.textContent = error.message;
  }
}

const look = () => {
  for (const element of document.querySelectorAll("[data-draw]")) draw(element);
};
new MutationObserver(look).observe(document.getElementById("main"), {
  childList: true,
  subtree: true,
});
look();
