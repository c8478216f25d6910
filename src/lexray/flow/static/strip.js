// The prompt on top: its tokens, and arcs from those that the drawn heads look at to the position
// whose flow it is. An arc is as wide as what was fetched there counts.

import { number, percent } from "./graph.js";
import { make } from "./panel.js";
import { draw } from "./picture.js";

const ARCS = 44; // the height of the arcs
const CLICK = 22; // how far above the tokens the nearest arc reaches
const LOOK = 54; // the largest share of green in a token's chip on which its letters stay legible

export class Strip {
  // `choose` is called with a position whose token was clicked, `light` with the nodes to light.
  constructor(graph, { choose, light }) {
    this.graph = graph;
    const { tokens, position, n_source = 0 } = graph.raw;
    this.svg = draw("svg", { class: "lf-arcs", "aria-hidden": "true" });
    this.chips = tokens.map((token, i) =>
      make(
        "button",
        {
          type: "button",
          class: [
            "lf-chip",
            i === position ? "lf-here" : "",
            i > 0 && i === n_source ? "lf-begins" : "",
          ].join(" "),
          "data-position": i,
          onclick: () => choose(i),
          onpointerenter: () => light(this.nodesAt(i)),
          onpointerleave: () => light(null),
        },
        token,
      ),
    );
    const row = make("div", { class: "lf-tokens" }, this.svg, ...this.chips);
    this.shown = false;
    this.element = make("div", { class: "lf-strip", "aria-label": "the prompt" }, row);
  }

  nodesAt(position) {
    const indices = [...this.graph.nodes.keys()];
    const own = new Set(indices.filter((i) => this.graph.nodes[i].position === position));
    const edges = new Set([...own].flatMap((i) => this.graph.near(i)));
    return own.size ? { nodes: own, edges } : null;
  }

  // What comes from each position: parts of the target's logit, or attention.
  fetched() {
    const { graph } = this;
    const sums = graph.raw.tokens.map(() => ({ share: 0, weight: 0, looks: 0 }));
    graph.nodes.forEach((node, i) => {
      if (node.kind !== "value" || node.position === undefined) return;
      for (const e of graph.outOf[i]) {
        const edge = graph.edges[e];
        const sum = sums[node.position];
        if (!sum) continue;
        sum.share += edge.added?.[graph.target] ?? 0;
        sum.weight += edge.score;
        sum.looks += 1;
      }
    });
    return sums;
  }

  paint(colours) {
    const { raw, weighed } = this.graph;
    const sums = this.fetched();
    const size = ({ share, weight }) => (weighed ? Math.abs(share) : weight);
    const most = Math.max(...sums.map(size), 1e-30);
    const word = raw.candidates[this.graph.target].shown;
    this.chips.forEach((chip, i) => {
      const { share, weight, looks } = sums[i];
      const shade = Math.sqrt(size(sums[i]) / most);
      chip.style.setProperty("--lf-look", `${Math.round(LOOK * shade)}%`);
      const told = weighed ? `, ${number(share)} to the logit of ${word}` : "";
      const mean = looks ? percent(weight / looks) : "";
      const n = raw.n_source ?? 0;
      const place = i < n ? `position ${i} of the source` : `position ${i - n}`;
      chip.title = looks
        ? `${place}: ${looks} of the drawn values, ${mean} attention each${told}`
        : `${place}: no drawn head looks here`;
    });
    this.sums = sums;
    this.size = size;
    this.most = most;
    this.colours = colours;
    this.arcs();
  }

  // Drawn where the tokens are, so again whenever these move.
  arcs() {
    const here = this.chips[this.graph.raw.position];
    if (!here || !this.sums) return;
    if (!this.shown && here.offsetWidth) {
      this.shown = true;
      const { offsetLeft, offsetWidth } = here;
      this.element.scrollLeft = offsetLeft + offsetWidth + 24 - this.element.clientWidth;
    }
    const middle = (chip) => chip.offsetLeft + chip.offsetWidth / 2;
    const row = this.svg.parentElement;
    const flat = new Set(this.chips.map((chip) => chip.offsetTop)).size === 1;
    this.svg.setAttribute("width", row.scrollWidth);
    this.svg.setAttribute("height", ARCS);
    const far = Math.max(...this.chips.map((chip) => Math.abs(middle(chip) - middle(here))), 1);
    const parts = this.chips.map((chip, i) => {
      const strength = this.size(this.sums[i]) / this.most;
      if (strength < 0.02 || chip === here || !flat) return null;
      const [a, b] = [middle(chip), middle(here)];
      const high = CLICK + (ARCS - CLICK - 4) * (Math.abs(b - a) / far);
      const against = this.graph.weighed && this.sums[i].share < 0;
      return draw("path", {
        d: `M${a} ${ARCS}C${a} ${ARCS - 1.33 * high} ${b} ${ARCS - 1.33 * high} ${b} ${ARCS}`,
        fill: "none",
        stroke: against ? this.colours.negative : this.colours.attention_high,
        "stroke-width": (1 + 6 * strength).toFixed(1),
        "stroke-opacity": (0.35 + 0.45 * strength).toFixed(2),
      });
    });
    this.svg.replaceChildren(...parts.filter(Boolean));
  }
}
