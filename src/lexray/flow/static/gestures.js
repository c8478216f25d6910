// Pointer and keys: what every gesture on the picture does.

export class Gestures {
  constructor(flow) {
    this.flow = flow;
    this.listen();
  }

  listen() {
    this.pointers = new Map();
    const { stage, root } = this.flow;
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("pointerdown", (event) => this.pointerDown(event));
    stage.addEventListener("pointermove", (event) => this.pointerMove(event));
    for (const name of ["pointerup", "pointercancel"])
      stage.addEventListener(name, (event) => this.pointerUp(event));
    stage.addEventListener("pointerleave", () => this.hover(null));
    stage.addEventListener("dblclick", (event) => {
      if (!this.over(event)) this.flow.camera.zoom(1.6, this.at(event));
    });
    stage.addEventListener("focusin", (event) => {
      const group = event.target.closest("[data-node]");
      if (!group?.matches(":focus-visible")) return;
      const index = Number(group.dataset.node);
      this.flow.camera.reveal(index);
      this.flow.light(this.flow.graph.paths(index));
    });
    stage.addEventListener("focusout", () => this.flow.light(null));
    root.addEventListener("keydown", (event) => this.key(event));
    stage.addEventListener("pointerdown", () => this.flow.bar.toggle());
  }

  // Where on the stage; asking for its place too often would make the browser lay out everything.
  at(event) {
    if (!this.corner || event.timeStamp - this.cornerAt > 250) {
      this.corner = this.flow.stage.getBoundingClientRect();
      this.cornerAt = event.timeStamp;
    }
    return [event.clientX - this.corner.left, event.clientY - this.corner.top];
  }

  // The node, edge or title under the pointer; thin edges are found a few pixels away.
  over(event) {
    const direct = event.target.closest?.("[data-node], [data-layer], [data-fold], [data-edge]");
    if (direct) return direct;
    const root = this.flow.root.getRootNode();
    const { clientX: x, clientY: y } = event;
    for (const [dx, dy] of [
      [0, 3],
      [0, -3],
      [3, 0],
      [-3, 0],
      [0, 5],
      [0, -5],
    ]) {
      const near = root.elementFromPoint(x + dx, y + dy)?.closest?.("[data-edge]");
      if (near && this.flow.svg.contains(near)) return near;
    }
    return null;
  }

  wheel(event) {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (event.shiftKey) return this.flow.camera.pan(-(event.deltaX || event.deltaY) * unit, 0);
    const speed = event.ctrlKey ? 0.01 : 0.0016;
    this.hideTip();
    return this.flow.camera.zoom(Math.exp(-event.deltaY * unit * speed), this.at(event), false);
  }

  pointerDown(event) {
    if (event.button !== 0) return;
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.dragged = 0;
    this.pressed = this.over(event);
    this.hideTip();
  }

  pointerMove(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) return this.hover(event);
    const dx = event.clientX - last[0];
    const dy = event.clientY - last[1];
    this.dragged += Math.abs(dx) + Math.abs(dy);
    if (this.dragged > 4 && !this.flow.stage.hasPointerCapture(event.pointerId))
      this.flow.stage.setPointerCapture(event.pointerId);
    if (this.pointers.size === 2) this.pinch(event, last, dx, dy);
    else {
      this.flow.stage.classList.toggle("lf-dragging", this.dragged > 4);
      this.flow.camera.pan(dx, dy);
    }
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    return null;
  }

  pinch(event, last, dx, dy) {
    const [id] = [...this.pointers.keys()].filter((other) => other !== event.pointerId);
    const other = this.pointers.get(id);
    const apart = (x, y) => Math.hypot(x - other[0], y - other[1]) || 1;
    const box = this.flow.stage.getBoundingClientRect();
    const middle = [
      (event.clientX + other[0]) / 2 - box.left,
      (event.clientY + other[1]) / 2 - box.top,
    ];
    this.flow.camera.zoom(apart(event.clientX, event.clientY) / apart(...last), middle, false);
    this.flow.camera.pan(dx / 2, dy / 2);
  }

  pointerUp(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    this.flow.stage.classList.remove("lf-dragging");
    if (this.dragged > 4 || event.type === "pointercancel") return;
    const { node, layer, fold } = this.pressed?.dataset ?? {};
    if (node !== undefined) this.flow.select(Number(node), false);
    else if (fold !== undefined) this.flow.unfold(fold);
    else if (layer !== undefined) this.flow.toggleLayer(Number(layer));
    else if (!this.pressed) this.flow.unselect();
  }

  hover(event) {
    const over = event && this.over(event);
    if (!over) {
      if (this.hovered) {
        this.hideTip();
        this.flow.light(null);
      }
      return;
    }
    const { node, edge } = over.dataset;
    if (node === undefined && edge === undefined) {
      this.hideTip();
      this.flow.light(null);
      this.hovered = over;
      return;
    }
    if (this.hovered !== over) {
      this.hovered = over;
      if (node !== undefined) this.tipNode(Number(node));
      else this.tipEdge(Number(edge));
      this.flow.tip.hidden = false;
    }
    this.placeTip(event);
  }

  tipNode(index) {
    this.flow.light(this.flow.graph.paths(index));
    this.flow.tip.replaceChildren(...this.flow.words.tip(this.flow.graph.nodes[index]));
  }

  tipEdge(index) {
    const edge = this.flow.graph.edges[index];
    const ends = [edge.source, edge.target].map((id) => this.flow.graph.index.get(id));
    this.flow.light({ nodes: new Set(ends), edges: new Set([index]) });
    this.flow.tip.replaceChildren(...this.flow.words.edgeTip(edge));
  }

  placeTip(event) {
    const main = this.flow.tip.parentElement.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.flow.tip;
    let x = event.clientX - main.left + 16;
    let y = event.clientY - main.top + 16;
    if (x + width > main.width - 8) x = Math.max(8, x - width - 32);
    if (y + height > main.height - 8) y = Math.max(8, main.height - height - 8);
    this.flow.tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }

  hideTip() {
    this.flow.tip.hidden = true;
    this.hovered = null;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      this.flow.bar.toggle();
      this.hideTip();
      if (!event.target.closest("input")) this.flow.unselect();
      return;
    }
    if (event.target.closest("input, select")) return;
    if (this.press(event.key, event.target)) event.preventDefault();
  }

  // What a key does; whether it does anything.
  press(key, target) {
    const step = 80;
    const { camera } = this.flow;
    const inside = target.closest(".lf-panel, .lf-pop");
    const pan = (dx, dy) => !inside && [camera.pan(dx, dy)];
    const zoomIn = () => [camera.zoom(1.3)];
    const zoomOut = () => [camera.zoom(1 / 1.3)];
    const enter = () => this.enter(target.closest("[data-node], [data-layer], [data-fold]"));
    const actions = {
      ArrowLeft: () => pan(step, 0),
      ArrowRight: () => pan(-step, 0),
      ArrowUp: () => pan(0, step),
      ArrowDown: () => pan(0, -step),
      "+": zoomIn,
      "=": zoomIn,
      "-": zoomOut,
      _: zoomOut,
      0: () => [camera.fit(true)],
      "/": () => [this.flow.bar.search.focus()],
      Enter: enter,
      " ": enter,
    };
    return Boolean(Object.hasOwn(actions, key) && actions[key]());
  }

  enter(focused) {
    if (!focused) return false;
    const { node, layer, fold } = focused.dataset;
    if (node !== undefined) this.flow.select(Number(node), false);
    else if (fold !== undefined) this.flow.unfold(fold);
    else {
      this.flow.toggleLayer(Number(layer));
      this.flow.svg.querySelector(`[data-layer="${Number(layer)}"]`)?.focus();
    }
    return true;
  }
}
