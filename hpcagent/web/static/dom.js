// Elements and numbers. Texts are set as text, never as markup.

export function h(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else if (name === "class") el.className = value;
    else if (name in el && typeof value !== "string") el[name] = value;
    else el.setAttribute(name, value === true ? "" : value);
  }
  add(el, children);
  return el;
}

function add(el, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    el.append(child instanceof Node ? child : String(child));
  }
}

// New children. What is as it was stays the same element: a click that has begun on it ends on it. The focus stays
// where it was, by the id of what had it.
export function fill(el, ...children) {
  const id = el.contains(document.activeElement) ? document.activeElement.id : "";
  const at = id && document.activeElement.selectionStart;
  patch(el, children);
  const again = id && document.getElementById(id);
  if (again) {
    again.focus({ preventScroll: true });
    if (typeof at === "number" && again.setSelectionRange) try { again.setSelectionRange(at, at); } catch { /* of a number */ }
  }
  return el;
}

function patch(el, children) {
  const wanted = children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false && c !== "").map((c) => (c instanceof Node ? c : document.createTextNode(String(c))));
  wanted.forEach((node, i) => {
    const old = el.childNodes[i];
    if (!old) el.append(node);
    else if (old !== node && !old.isEqualNode(node)) {
      if (wanted.includes(old) || node.parentNode === el) el.insertBefore(node, old);
      else old.replaceWith(node);
    }
  });
  while (el.childNodes.length > wanted.length) el.lastChild.remove();
}

export function num(value, digits = 4) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return (Math.abs(value) >= 1e4 ? value.toLocaleString("en").replaceAll(",", "\u202f") : String(value)).replace("-", "−");
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e6)
    ? value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e").replace(/e(.+)/, (_, n) => tenTo(n))
    : String(Number(value.toPrecision(size < 1 ? digits : Math.max(digits, Math.floor(Math.log10(size)) + 1))));
  return text.replace(/^-/, "−");
}
const tenTo = (n) => ` × 10${[...String(n)].map((c) => UP[c]).join("")}`;
const UP = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

// What something is at most: rounded up, never down.
export function atMost(value, digits = 4) {
  if (typeof value !== "number" || !(value > 0) || !Number.isFinite(value)) return num(value, digits);
  const step = 10 ** Math.min(0, Math.floor(Math.log10(value)) - digits + 1);
  const up = Math.ceil(value / step * (1 - 1e-12)) * step;
  return num(Number(up.toPrecision(12)), 12);
}

// A probability: nothing is certain that is not.
export function percent(p) {
  if (p > 0.999 && p < 1) return "> 99.9 %";
  if (p > 0 && p < 0.001) return "< 0.1 %";
  return `${num(100 * p, 3)} %`;
}

// Node-hours, in which what is very little is as good as nothing.
export const hours = (value) => (value > 0 && value < 1e-3 ? "< 0.001" : num(value, 3));

// A text of so many characters at most; one that is cut says so.
export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text);

export const unit = (u) => (!u || u === "1" ? "" : ` ${u}`);

// A value with its standard error, as many digits as the error has meaning.
export function withError(value, error) {
  if (typeof value !== "number" || typeof error !== "number" || !(error > 0)) return num(value);
  const last = Math.floor(Math.log10(error)) - 1; // the place of the last digit: two of the error are shown
  if (last >= -8 && Math.abs(value) < 1e6 && error < 1e6) return `${value.toFixed(Math.max(0, -last)).replace("-", "−")} ± ${error.toFixed(Math.max(0, -last))}`;
  const power = Math.floor(Math.log10(Math.max(Math.abs(value), error)));
  const places = Math.min(15, power - last);
  const [v, e] = [value, error].map((x) => Number(`${x}e${-power}`) || x / 10 ** power).map((x) => x.toFixed(places).replace("-", "−"));
  return `(${v} ± ${e})${power ? tenTo(power) : ""}`;
}

export function span(s) {
  if (s === null || s === undefined) return "–";
  if (s < 1) return `${num(s * 1000, 2)} ms`;
  if (s < 100) return `${num(s, 3)} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${num(s / 3600, 3)} h`;
  return `${num(s / 86400, 3)} d`;
}

export function bytes(n) {
  if (!n) return "0 B";
  const step = Math.min(4, Math.floor(Math.log10(Math.max(1, n)) / 3));
  return `${num(n / 1000 ** step, 3)} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}

export function when(t) {
  if (!t) return "–";
  const date = new Date(t * 1000);
  const day = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: day ? "2-digit" : undefined, hour12: false });
  return day ? time : `${date.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

const LOOK = { completed: "good", running: "live", pending: "quiet", waiting: "quiet", failed: "bad", stopped: "warn", cancelled: "quiet", granted: "good", approved: "good", passed: "good", rejected: "bad", used: "good", denied: "bad", expired: "quiet" };
export const chip = (state, words = state) => h("span", { class: `chip ${LOOK[state] ?? "quiet"}` }, words);

export function meter(share, label) {
  const known = typeof share === "number";
  return h("div", { class: "meter", role: "progressbar", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": known ? String(Math.round(100 * share)) : undefined },
    h("div", { class: known ? "" : "unknown", style: known ? `width:${Math.min(100, 100 * share)}%` : "" }));
}

export const facts = (rows) => h("dl", { class: "facts" }, rows.filter((r) => r && r[1] !== undefined && r[1] !== null && r[1] !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

export const empty = (title, words, ...more) => h("div", { class: "empty" }, h("p", { class: "big" }, title), h("p", {}, words), more);
