// What somebody has chosen to show: nodes by themselves, or several under a name.

import { button, make } from "./panel.js";

export class Pins {
  constructor(flow) {
    this.flow = flow;
  }

  get all() {
    return this.flow.state.pins;
  }

  find(id) {
    return this.all.findIndex((pin) => pin.nodes.includes(id));
  }

  // Pins a node by itself, or under a name together with those that have it; or takes it off.
  toggle(id, name) {
    const at = this.find(id);
    if (at >= 0) {
      this.all[at].nodes = this.all[at].nodes.filter((other) => other !== id);
      if (!this.all[at].nodes.length) this.all.splice(at, 1);
    } else {
      const group = name && this.all.find((pin) => pin.name === name);
      if (group) group.nodes.push(id);
      else this.all.push({ nodes: [id], name });
    }
    this.show();
  }

  show() {
    const { graph, picture } = this.flow;
    const pinned = new Set(this.all.flatMap((pin) => pin.nodes));
    for (const [i, group] of picture.everyBox())
      group.classList.toggle("lf-pinned", pinned.has(graph.nodes[i].id));
  }

  // The button and the name beside a chosen node.
  tools(node) {
    const at = this.find(node.id);
    const named = make("input", {
      type: "text",
      placeholder: "group name (optional)",
      "aria-label": "name of the group",
    });
    const turn = () => {
      this.toggle(node.id, named.value.trim());
      this.flow.select(this.flow.graph.index.get(node.id), false);
    };
    const why = "pinned parts are what the figure for print shows";
    const text = at < 0 ? "Pin" : "Unpin";
    const name = at < 0 ? named : make("span", {}, this.all[at].name);
    return make("p", { class: "lf-pin" }, button(why, text, turn), name);
  }
}
