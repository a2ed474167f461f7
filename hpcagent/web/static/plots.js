// Plots of a campaign: the plane of two parameters, and how the metric came on. Each is a picture with a sentence
// that says what is in it; the numbers are in the table.

import uPlot from "./uPlot.js";
import { h, num, unit } from "./dom.js";

const css = (el, name) => getComputedStyle(el).getPropertyValue(name).trim();

// Dark blue over green to yellow: even steps of lightness, readable without colour vision.
// On a dark page the dark end is lighter.
const REST = [[42, 124, 146], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
const STOPS = { light: [[68, 1, 84], [65, 68, 135], ...REST], dark: [[132, 94, 194], [86, 108, 196], ...REST] };
const dark = matchMedia("(prefers-color-scheme: dark)");
const stops = () => STOPS[dark.matches ? "dark" : "light"];
function colour(share) {
  const all = stops();
  const at = Math.max(0, Math.min(1, share)) * (all.length - 1);
  const i = Math.min(all.length - 2, Math.floor(at));
  return `rgb(${all[i].map((from, k) => Math.round(from + (at - i) * (all[i + 1][k] - from)))})`;
}
const BINS = 24;

function axis(el, label, more = {}) {
  return { label, labelSize: 22, labelGap: 2, labelFont: `12px ${css(el, "--font")}`, font: `11px ${css(el, "--font")}`, stroke: css(el, "--soft"), grid: { stroke: css(el, "--line"), width: 1 }, ticks: { stroke: css(el, "--line"), width: 1, size: 4 }, ...more };
}

class Plot {
  constructor(height, label) {
    this.height = height;
    this.box = h("div", { class: "plot", role: "img", "aria-label": label, style: `height:${height}px` });
    this.el = this.box;
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.box);
    this.again = () => this.make();
    dark.addEventListener("change", this.again);
  }

  fit() {
    const width = this.box.clientWidth;
    if (!width) return;
    if (this.u) this.u.setSize({ width, height: this.height });
    else this.make();
  }

  end() {
    this.watcher.disconnect();
    dark.removeEventListener("change", this.again);
    this.u?.destroy();
  }
}

// Values as numbers on an axis: words are places with names.
function scaleOf(p) {
  if (p.kind === "choice") {
    const names = p.choices.map(String);
    return { at: (v) => names.indexOf(String(v)), range: [-0.5, names.length - 0.5], axis: { splits: () => names.map((_, i) => i), values: () => names }, log: false };
  }
  const low = p.low ?? 0, high = p.high ?? 1;
  const log = p.log && low > 0;
  const pad = log ? (high / low) ** 0.04 : 0.04 * (high - low || 1);
  return { at: (v) => v, range: log ? [low / pad, high * pad] : [low - pad, high + pad], axis: {}, log };
}

export class Plane extends Plot {
  constructor(open) {
    super(330, "");
    this.open = open;
    this.points = [];
    this.key = "";
  }

  // points: [{x, y, value, state, id, row}]; x, y: parameters; value: what colours.
  set(points, px, py, value) {
    this.points = points;
    this.px = px;
    this.py = py;
    this.value = value;
    const known = points.filter((p) => typeof p.value === "number").map((p) => p.value).sort((a, b) => a - b);
    this.low = known[0];
    this.high = known[known.length - 1];
    this.box.setAttribute("aria-label", `Plane of ${px.name} and ${py.name}: ${points.length} runs` +
      (known.length ? `, ${value.name} from ${num(this.low)} to ${num(this.high)}${unit(value.unit)} by colour` : "") + ". The table of runs has the numbers.");
    const key = JSON.stringify([px, py]);
    if (key !== this.key || !this.u) {
      this.key = key;
      this.make();
    } else this.u.redraw();
  }

  make() {
    if (!this.px || !this.box.clientWidth) return;
    this.u?.destroy();
    const [x, y] = [scaleOf(this.px), scaleOf(this.py)];
    this.places = { x, y };
    const scale = (s) => ({ time: false, auto: false, range: () => s.range, distr: s.log ? 3 : 1 });
    this.u = new uPlot({
      mode: 2,
      width: this.box.clientWidth,
      height: this.height,
      padding: [10, 12, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false, setScale: false }, points: { show: false } },
      scales: { x: scale(x), y: scale(y) },
      axes: [axis(this.box, `${this.px.name}${this.px.unit === "1" ? "" : ` (${this.px.unit})`}`, { size: 32, ...x.axis }), axis(this.box, `${this.py.name}${this.py.unit === "1" ? "" : ` (${this.py.unit})`}`, { size: 58, ...y.axis })],
      series: [{}, { facets: [{ scale: "x", auto: false }, { scale: "y", auto: false }], paths: () => null, points: { show: false } }],
      hooks: { draw: [(u) => this.paint(u)] },
    }, [null, [[0], [0]]], this.box);
    this.u.over.addEventListener("click", (event) => this.click(event));
    this.u.over.addEventListener("mousemove", (event) => { this.u.over.style.cursor = this.nearest(event) ? "pointer" : "default"; });
  }

  paint(u) {
    const ctx = u.ctx, ratio = devicePixelRatio;
    const many = this.points.length > 1500;
    const size = (many ? 3.5 : this.points.length > 300 ? 5 : 8) * ratio;
    const place = (p) => [u.valToPos(this.places.x.at(p.x), "x", true), u.valToPos(this.places.y.at(p.y), "y", true)];
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    const colours = Array.from({ length: BINS }, (_, i) => colour(i / (BINS - 1)));
    const bins = colours.map(() => []);
    const bad = [], going = [];
    for (const p of this.points) {
      if (p.state === "failed") bad.push(p);
      else if (typeof p.value !== "number") going.push(p);
      else {
        const share = this.high > this.low ? (p.value - this.low) / (this.high - this.low) : 0.5;
        bins[Math.min(BINS - 1, Math.floor(share * BINS))].push(p);
      }
    }
    ctx.strokeStyle = css(this.box, "--soft");
    ctx.lineWidth = 1.2 * ratio;
    ctx.globalAlpha = many ? 0.45 : 0.8;
    ctx.beginPath();
    for (const p of bad) {
      const [x, y] = place(p), r = size / 2.2;
      ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r); ctx.moveTo(x + r, y - r); ctx.lineTo(x - r, y + r);
    }
    ctx.stroke();
    ctx.globalAlpha = many ? 0.75 : 0.95;
    bins.forEach((bin, i) => {
      ctx.fillStyle = colours[i];
      for (const p of bin) {
        const [x, y] = place(p);
        if (many) ctx.fillRect(x - size / 2, y - size / 2, size, size);
        else { ctx.beginPath(); ctx.arc(x, y, size / 1.7, 0, 7); ctx.fill(); }
      }
    });
    ctx.globalAlpha = 1;
    ctx.strokeStyle = css(this.box, "--accent");
    for (const p of going) { const [x, y] = place(p); ctx.beginPath(); ctx.arc(x, y, size / 1.7, 0, 7); ctx.stroke(); }
    const best = this.points.find((p) => p.best);
    if (best) {
      const [x, y] = place(best);
      ctx.strokeStyle = css(this.box, "--ink"); ctx.lineWidth = 2 * ratio;
      ctx.beginPath(); ctx.arc(x, y, size / 1.7 + 4 * ratio, 0, 7); ctx.stroke();
    }
    ctx.restore();
  }

  nearest(event) {
    const box = this.u.over.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let found = null, least = 14 ** 2;
    for (const p of this.points) {
      const d = (this.u.valToPos(this.places.x.at(p.x), "x") - x) ** 2 + (this.u.valToPos(this.places.y.at(p.y), "y") - y) ** 2;
      if (d < least) [found, least] = [p, d];
    }
    return found;
  }

  click(event) {
    const found = this.nearest(event);
    if (found) this.open(found.row);
  }
}

// Each run's metric by the run's number, which is that of the table, and the best so far that keeps the limits.
export class Convergence extends Plot {
  constructor() {
    super(375, "");
    this.data = [[], [], [], []];
  }

  // best: none of a sweep.
  set(numbers, values, kept, best, metric) {
    this.metric = metric;
    this.data = [numbers, values.map((v, i) => (kept[i] ? v : null)), values.map((v, i) => (kept[i] ? null : v)), best ?? values.map(() => null)];
    const last = best?.at(-1);
    this.box.setAttribute("aria-label", `${metric.name} of ${values.length} completed runs by their number${numbers.length ? `, ${numbers[0]} to ${numbers[numbers.length - 1]}` : ""}` +
      (typeof last === "number" ? `; the best that keeps the limits is ${num(last)}${unit(metric.unit)}` : "") + ". The table of runs has the numbers.");
    const key = metric.name;
    if (key !== this.key || !this.u) {
      this.key = key;
      this.make();
    } else this.u.setData(this.data);
  }

  make() {
    if (!this.metric || !this.box.clientWidth) return;
    this.u?.destroy();
    const accent = css(this.box, "--accent"), soft = css(this.box, "--soft");
    const dots = (stroke, fill) => ({ paths: () => null, stroke, points: { show: true, size: this.data[0].length > 1500 ? 3 : 6, stroke, fill, width: 1 } });
    this.u = new uPlot({
      width: this.box.clientWidth,
      height: this.height,
      padding: [10, 12, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false, setScale: false }, points: { show: false } },
      scales: { x: { time: false, range: (u, low, high) => [-0.5, Math.max(0.5, (high ?? 0) + 0.5)] } },
      axes: [axis(this.box, "run", { size: 32, incrs: [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5].map((p) => n * 10 ** p)).sort((a, b) => a - b) }), axis(this.box, `${this.metric.name}${this.metric.unit === "1" ? "" : ` (${this.metric.unit})`}`, { size: 58, values: (u, splits) => splits.map((v) => num(v, 3)) })],
      series: [{}, dots(accent, accent), dots(soft, "transparent"), { stroke: css(this.box, "--ink"), width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
    }, this.data, this.box);
  }
}

// A metric's model along one parameter through the best point, with what it lies between with 90 %; runs near it.
export class SliceLine extends Plot {
  constructor() {
    super(220, "");
  }

  set(slice, parameter, metric, here) {
    Object.assign(this, { slice, parameter, metric, here });
    this.box.setAttribute("aria-label", sliceWords(slice, parameter, metric, here));
    this.make();
  }

  make() {
    if (!this.slice || !this.box.clientWidth) return;
    this.u?.destroy();
    const { slice: s, parameter: p, metric: m } = this, place = scaleOf(p);
    const x = s.values.map(place.at);
    const near = s.runs.map(([v, y]) => [place.at(v), y]).filter(([v]) => typeof v === "number");
    const all = [...s.low, ...s.high, ...near.map(([, y]) => y), ...(s.limit === null ? [] : [s.limit])].filter(Number.isFinite);
    const pad = 0.06 * (Math.max(...all) - Math.min(...all) || 1);
    const accent = css(this.box, "--accent");
    this.u = new uPlot({
      width: this.box.clientWidth, height: this.height, padding: [10, 12, 0, 0], legend: { show: false },
      cursor: { show: false, drag: { x: false, y: false, setScale: false } },
      scales: { x: { time: false, auto: false, range: () => (p.kind === "choice" || !place.log ? place.range : [x[0], x[x.length - 1]]), distr: place.log ? 3 : 1 }, y: { range: () => [Math.min(...all) - pad, Math.max(...all) + pad] } },
      axes: [axis(this.box, `${p.name}${p.unit === "1" ? "" : ` (${p.unit})`}`, { size: 32, ...place.axis }), axis(this.box, `${m.name}${m.unit === "1" ? "" : ` (${m.unit})`}`, { size: 58, values: (u, splits) => splits.map((v) => num(v, 3)) })],
      series: [{}, ...(p.kind === "choice" ? [{ paths: () => null, stroke: accent, points: { show: true, size: 8, fill: accent } }] : [{ stroke: accent, width: 1.5, points: { show: false } }, { stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } }])],
      bands: p.kind === "choice" ? [] : [{ series: [3, 2], fill: `color-mix(in srgb, ${accent} 16%, transparent)` }],
      hooks: { draw: [(u) => this.marks(u, x, near)] },
    }, p.kind === "choice" ? [x, s.mean] : [x, s.mean, s.low, s.high], this.box);
  }

  marks(u, x, near) {
    const ctx = u.ctx, ratio = devicePixelRatio, s = this.slice;
    const at = (a, b) => [u.valToPos(a, "x", true), u.valToPos(b, "y", true)];
    ctx.save();
    ctx.beginPath(); ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height); ctx.clip();
    ctx.lineWidth = 1.2 * ratio;
    const line = (from, to, colour, dash) => { ctx.strokeStyle = colour; ctx.setLineDash(dash.map((d) => d * ratio)); ctx.beginPath(); ctx.moveTo(...from); ctx.lineTo(...to); ctx.stroke(); ctx.setLineDash([]); };
    if (this.parameter.kind === "choice") x.forEach((v, i) => line(at(v, s.low[i]), at(v, s.high[i]), css(this.box, "--accent"), []));
    const here = scaleOf(this.parameter).at(this.here);
    if (typeof here === "number") { const [h0] = at(here, 0); line([h0, u.bbox.top], [h0, u.bbox.top + u.bbox.height], css(this.box, "--soft"), [2, 3]); }
    if (s.limit !== null) { const [, y] = at(x[0], s.limit); line([u.bbox.left, y], [u.bbox.left + u.bbox.width, y], css(this.box, "--bad"), [5, 4]); }
    ctx.fillStyle = css(this.box, "--ink");
    near.forEach(([a, b], i) => { ctx.globalAlpha = 0.25 + 0.65 * s.runs[i][2]; ctx.beginPath(); ctx.arc(...at(a, b), 2.4 * ratio, 0, 7); ctx.fill(); });
    ctx.restore();
  }
}

function sliceWords(s, p, m, here) {
  const known = s.mean.map((v, i) => [v, i]);
  const [low, high] = [known.reduce((a, b) => (b[0] < a[0] ? b : a)), known.reduce((a, b) => (b[0] > a[0] ? b : a))];
  const at = ([v, i]) => `${num(v)}${unit(m.unit)} at ${num(s.values[i])}${unit(p.unit)}`;
  return `${m.name} along ${p.name} by the model, through ${num(here)}${unit(p.unit)}: lowest ${at(low)}, highest ${at(high)}; ${s.runs.length} runs near it.`;
}

export function legend(low, high, name, u) {
  return h("div", { class: "legend" }, h("span", {}, num(low, 3)), h("span", { class: "ramp", style: `background:linear-gradient(90deg,${stops().map((s) => `rgb(${s})`)})` }), h("span", {}, `${num(high, 3)}${unit(u)}`), h("span", { class: "soft" }, name));
}
