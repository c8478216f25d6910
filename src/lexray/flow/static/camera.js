// Which part of the picture is seen, and how it moves there.
const REST = 140; // milliseconds without movement after which large pictures are drawn anew

const READ = 1; // the scale at which rows are read

export class Camera {
  // `covered` says how many pixels at the right of the stage lie under something.
  constructor(picture, stage, covered) {
    this.picture = picture;
    this.stage = stage;
    this.covered = covered;
    this.view = { x: 0, y: 0, k: 1 };
    this.moved = false;
  }

  size() {
    this.known ??= { width: this.stage.clientWidth || 1, height: this.stage.clientHeight || 1 };
    return this.known;
  }

  resize() {
    this.known = null;
    if (this.moved) this.place();
    else this.begin();
  }

  place() {
    clearTimeout(this.resting);
    this.picture.move(this.view, this.size());
  }

  placeMoving() {
    if (!this.picture.heavy) return this.place();
    clearTimeout(this.resting);
    this.picture.slide(this.view);
    this.resting = setTimeout(() => this.place(), REST);
  }

  // Shows everything.
  fit(smooth = false) {
    const { bounds } = this.picture;
    const { width, height } = this.size();
    this.fill(Math.min(width / bounds.width, height / bounds.height, this.most), smooth);
  }

  // Shows everything if that can be read, else as many rows from the top as can be.
  begin(smooth = false) {
    const { bounds, rows } = this.picture;
    const { width, height } = this.size();
    const whole = Math.min(width / bounds.width, height / bounds.height, this.most);
    const across = Math.min(width / bounds.width, READ);
    this.fill(rows.length > 1 ? Math.max(whole, across) : whole, smooth);
  }

  get most() {
    return Math.max(1.25, this.size().width / 1500);
  }

  fill(k, smooth) {
    const { bounds } = this.picture;
    const { width, height } = this.size();
    const spare = Math.max(0, (height - bounds.height * k) / 2);
    const x = (width - bounds.width * k) / 2 - bounds.x * k;
    this.moved = false;
    this.go({ k, x, y: 0.8 * spare - bounds.y * k }, smooth);
  }

  // Brings a part of the picture into view, at most `most` times its size.
  show(part, most) {
    const { width, height } = this.size();
    const k = Math.max(0.02, Math.min(width / part.width, height / part.height, most));
    const spare = Math.max(0, (0.8 * (height - part.height * k)) / 2);
    this.moved = true;
    this.go({ k, x: width / 2 - (part.x + part.width / 2) * k, y: spare - part.y * k }, true);
  }

  reveal(index) {
    const box = this.picture.boxOf(index);
    if (!box) return;
    const { width, height } = this.size();
    const { view } = this;
    const free = width - this.covered();
    const k = Math.max(view.k, Math.min(0.7, free / 700));
    const x = view.x + box.x * view.k;
    const y = view.y + box.y * view.k;
    const across = x > 10 && x + box.width * view.k < free - 10;
    const down = y > 10 && y + box.height * view.k < height - 10;
    if (across && down && k === view.k) return;
    this.moved = true;
    const middle = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    this.go({ k, x: free / 2 - middle.x * k, y: height / 2 - middle.y * k }, true);
  }

  go(view, smooth) {
    cancelAnimationFrame(this.frame);
    if (!smooth || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.view = view;
      if (this.moved) this.placeMoving();
      else this.place();
      return;
    }
    const from = this.view;
    const began = performance.now();
    const step = (now) => {
      const t = Math.min(1, Math.max(0, (now - began) / 260));
      const e = 1 - (1 - t) ** 3;
      const k = from.k * (view.k / from.k) ** e;
      const share = from.k === view.k ? e : (k - from.k) / (view.k - from.k);
      const between = (a, b) => a + (b - a) * share;
      this.view = { k, x: between(from.x, view.x), y: between(from.y, view.y) };
      this.placeMoving();
      if (t < 1) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  zoom(factor, at = null, smooth = true) {
    const { width, height } = this.size();
    const [cx, cy] = at ?? [width / 2, height / 2];
    const k = Math.min(6, Math.max(0.02, this.view.k * factor));
    const ratio = k / this.view.k;
    this.moved = true;
    this.go({ k, x: cx - (cx - this.view.x) * ratio, y: cy - (cy - this.view.y) * ratio }, smooth);
  }

  pan(dx, dy) {
    this.moved = true;
    cancelAnimationFrame(this.frame);
    this.view = { ...this.view, x: this.view.x + dx, y: this.view.y + dy };
    this.placeMoving();
  }

  stop() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.resting);
  }
}
