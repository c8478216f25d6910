// Attention patterns: all heads small, the chosen one large over the prompt. Nothing is fetched.
//
//   show(element, data, { hash, head, onHead })
//
// `data` is what AttentionPatterns.page_data returns; `head` is the one that is chosen at first.

const SVG = "http://www.w3.org/2000/svg";
const ROW = 24.8; // the height of a token's line, as in the style sheet: 1.55rem

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function colour(name) {
  const probe = make("span");
  probe.style.color = `var(--lx-${name})`;
  document.body.append(probe);
  const parts = getComputedStyle(probe)
    .color.match(/[\d.]+/g)
    .map(Number);
  probe.remove();
  return parts;
}

export function show(element, data, options = {}) {
  const { tokens, positions } = data;
  const seen = data.keys ?? tokens; // of cross-attention: the source
  const heads = data.heads.map((head) => {
    const bytes = Uint8Array.from(atob(head.weights), (letter) => letter.charCodeAt(0));
    return { ...head, bytes, name: head.address };
  });
  const state = { head: null, row: positions.indexOf(data.position) };

  const weight = (head, row, column) => head.bytes[row * seen.length + column] / 255;

  // How far a head looks away from the first token and from itself, weighed by how sure it is: what
  // is worth a look first.
  function interest(head) {
    const row = state.row;
    return Math.max(
      ...seen.map((_, j) =>
        j === 0 || (seen === tokens && j === positions[row]) ? 0 : weight(head, row, j),
      ),
    );
  }

  function paint(canvas, head, cold, hot) {
    const image = new ImageData(seen.length, positions.length);
    head.bytes.forEach((byte, i) => {
      const share = (byte / 255) ** 0.6;
      for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = cold[c] + (hot[c] - cold[c]) * share;
      image.data[4 * i + 3] = 255;
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function buildSmall() {
    const layers = [...new Set(heads.map((head) => head.layer))];
    const numbers = [...new Set(heads.map((head) => head.head))];
    const rows = layers.map((layer) => {
      const cells = heads
        .filter((head) => head.layer === layer)
        .map((head) => {
          const size = { width: seen.length, height: positions.length };
          head.canvas = make("canvas", size);
          head.button = make(
            "button",
            {
              type: "button",
              title: `${head.name}: ${head.words.join(" ")}`,
              "aria-label": `head ${head.head} of layer ${layer}`,
              onclick: () => choose(head),
            },
            head.canvas,
          );
          return make("td", {}, head.button);
        });
      return make("tr", {}, make("th", { scope: "row" }, `L${layer}`), ...cells);
    });
    const top = numbers.map((n) => make("th", { scope: "col" }, String(n)));
    const head = make("thead", {}, make("tr", {}, make("th"), ...top));
    const small = make(
      "div",
      { class: "small" },
      make("table", {}, head, make("tbody", {}, ...rows)),
    );
    small.style.setProperty("--heads", numbers.length);
    return small;
  }

  function repaint() {
    const [cold, hot] = [colour("cold"), colour("hot")];
    for (const head of heads) paint(head.canvas, head, cold, hot);
  }

  const large = make("section", { class: "large card", "aria-live": "polite" });

  function listOf(words, indices, here, action) {
    const items = indices.map((i, row) => {
      const given = { class: i === here ? "here" : null, title: `position ${i}` };
      return make("li", action ? { ...given, onpointerenter: () => action(row) } : given, words[i]);
    });
    return make("ol", {}, ...items);
  }

  function curves(head) {
    const svg = document.createElementNS(SVG, "svg");
    const high = ROW * Math.max(seen.length, positions.length);
    svg.setAttribute("viewBox", `0 0 100 ${high}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.style.height = `${high}px`;
    positions.forEach((_, row) => {
      const chosen = row === state.row;
      seen.forEach((__, column) => {
        const share = weight(head, row, column);
        if (share < 0.02) return;
        const [a, b] = [(row + 0.5) * ROW, (column + 0.5) * ROW];
        const path = document.createElementNS(SVG, "path");
        path.setAttribute("d", `M0 ${a}C50 ${a} 50 ${b} 100 ${b}`);
        path.setAttribute("vector-effect", "non-scaling-stroke");
        path.setAttribute("stroke-width", (0.5 + 5 * share * (chosen ? 1.4 : 0.7)).toFixed(2));
        path.setAttribute("stroke-opacity", (share * (chosen ? 0.95 : 0.16)).toFixed(3));
        const title = document.createElementNS(SVG, "title");
        title.textContent = `${tokens[positions[row]]} → ${seen[column]}: ${(100 * share).toFixed(0)} %`;
        path.append(title);
        svg.append(path);
      });
    });
    return svg;
  }

  // A token; one that occurs more than once carries its position.
  function placed(words, i) {
    const twice = words.indexOf(words[i]) !== words.lastIndexOf(words[i]);
    return twice ? words[i] + String(i).replace(/\d/g, (d) => "₀₁₂₃₄₅₆₇₈₉"[d]) : words[i];
  }

  function drawLarge() {
    const { head } = state;
    const from = (row) => {
      state.row = row;
      drawLarge();
    };
    const here = positions[state.row];
    const best = seen
      .map((_, j) => [weight(head, state.row, j), j])
      .sort((a, b) => b[0] - a[0])
      .slice(0, 3)
      .filter(([share]) => share >= 0.01)
      .map(([share, j]) => `${placed(seen, j)} ${(100 * share).toFixed(0)} %`)
      .join(", ");
    const words = head.words.map((word) => make("span", { class: "tok" }, word));
    const spaced = words.flatMap((word) => [word, " "]);
    const every = seen.map((_, i) => i);
    large.replaceChildren(
      make("h2", {}, `Layer ${head.layer}, head ${head.head}`),
      make("p", { class: "note" }, `writes at ${tokens[data.position]}: `, ...spaced),
      make("p", { class: "note" }, `from ${placed(tokens, here)} it looks at ${best}`),
      make(
        "div",
        { class: "lines" },
        listOf(tokens, positions, here, from),
        curves(head),
        listOf(seen, every, -1),
      ),
    );
  }

  function choose(head) {
    state.head?.button.setAttribute("aria-pressed", "false");
    state.head = head;
    head.button.setAttribute("aria-pressed", "true");
    if (options.hash) history.replaceState(null, "", `#${head.name}`);
    options.onHead?.(head.name);
    drawLarge();
  }

  element.classList.add("attention");
  element.replaceChildren(buildSmall(), large);
  repaint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  const named = options.hash ? location.hash.slice(1) : options.head;
  const asked = heads.find((head) => head.name === named);
  choose(asked ?? heads.reduce((a, b) => (interest(b) > interest(a) ? b : a)));
}
