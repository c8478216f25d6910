// What takes long: begun by the page, looked at while it runs, ended when nobody wants it.

export const LEFT = new DOMException("the page was left", "AbortError");
const OFTEN = 350; // milliseconds between two looks

export async function ask(address, options = {}) {
  const answer = await fetch(address, { credentials: "same-origin", ...options });
  const text = await answer.text();
  if (answer.ok) return text;
  let words = text;
  try {
    words = JSON.parse(text).error ?? text;
  } catch {
    // it is words already
  }
  throw new Error(words.trim().slice(0, 600) || `it failed (${answer.status})`);
}

export const askJson = async (address, options) => JSON.parse(await ask(address, options));

export const withEnding = (address, ending) => {
  const [path, query] = address.split("?");
  return `${path}.${ending}${query ? `?${query}` : ""}`;
};

const pause = (time) => new Promise((done) => setTimeout(done, time));

// Begins the run behind an address and waits for it. `see` is shown how far it is; `signal` ends it.
export async function run(address, { see = () => {}, signal = null, body = null } = {}) {
  let state = await askJson(address, { method: "POST", body, signal });
  const end = () => {
    const how = signal.reason === LEFT ? "?gently" : "";
    if (state.run) fetch(`/runs/${state.run}/cancel${how}`, { method: "POST", keepalive: true });
  };
  signal?.addEventListener("abort", end, { once: true });
  while (state.state === "waiting" || state.state === "running") {
    see(state);
    await pause(OFTEN);
    signal?.throwIfAborted();
    state = await askJson(`/runs/${state.run}`, { signal });
  }
  signal?.removeEventListener("abort", end);
  if (state.state === "cancelled") throw new DOMException("cancelled", "AbortError");
  if (state.state === "failed") throw new Error(state.error);
  return state;
}

// A line that says how far a run is, with a button that ends it.
export function waitingLine(controller) {
  const line = document.createElement("div");
  const bar = document.createElement("progress");
  const words = document.createElement("span");
  const stop = document.createElement("button");
  line.className = "waiting";
  bar.setAttribute("aria-label", "progress");
  stop.type = "button";
  stop.textContent = "cancel";
  stop.addEventListener("click", () => controller.abort());
  line.append(bar, words, stop);
  const see = (state) => {
    if (state.state === "waiting") {
      words.textContent = state.ahead ? `waiting: ${state.ahead} before it` : "about to begin";
      bar.removeAttribute("value");
    } else if (state.total) {
      words.textContent = `${state.what} (${state.done} of ${state.total})`;
      bar.value = state.done / state.total;
    } else {
      words.textContent = state.what || "working";
      bar.removeAttribute("value");
    }
  };
  words.textContent = "about to begin";
  return { line, see };
}
