// A table of very many rows: those that are seen are drawn, all of them can be reached by keys and are counted for
// screen readers.

import { fill, h } from "./dom.js";

const ROW = 36;
const MORE = 6;

export class Table {
  // columns: {key, title, cell(row) -> node or text, value(row), numeric, narrow: shown on a phone, width}
  constructor({ label, columns, id, open, sort, height = 0 }) {
    this.columns = columns;
    this.open = open;
    this.id = id;
    this.rows = [];
    this.shown = [];
    this.drawn = new Map();
    this.active = "";
    this.sort = sort ?? { key: columns[0].key, down: false };
    this.heads = columns.map((c) => h("div", { role: "columnheader", class: this.kind(c) },
      h("button", { type: "button", id: `${id}-sort-${c.key}`, onclick: () => this.sortBy(c.key) }, c.title)));
    this.space = h("div", { role: "none", class: "space" });
    this.body = h("div", { role: "rowgroup", class: "body", onscroll: () => this.draw(), onkeydown: (e) => this.key(e), style: height ? `max-height:${height}px` : "" }, this.space);
    const wide = columns.map((c) => c.width ?? "minmax(0,1fr)").join(" ");
    const narrow = columns.filter((c) => c.narrow).map((c) => c.narrow === true ? c.width ?? "minmax(0,1fr)" : c.narrow).join(" ");
    this.el = h("div", { role: "grid", class: "table", "aria-label": label, style: `--wide:${wide};--narrow:${narrow}` },
      h("div", { role: "rowgroup" }, h("div", { role: "row", class: "head", "aria-rowindex": "1" }, this.heads)), this.body);
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.body);
  }

  kind(c) {
    return [c.numeric ? "number" : "", c.narrow ? "" : "wide-only"].join(" ").trim();
  }

  set(rows) {
    this.rows = rows;
    this.order();
  }

  sortBy(key) {
    this.sort = { key, down: this.sort.key === key ? !this.sort.down : Boolean(this.columns.find((c) => c.key === key).numeric) };
    this.body.scrollTop = 0;
    this.order();
  }

  order() {
    const { key, down } = this.sort;
    const column = this.columns.find((c) => c.key === key);
    const value = column.value ?? ((row) => row[key]);
    const sign = down ? -1 : 1;
    const keyed = this.rows.map((row) => [value(row), row]);
    keyed.sort(([a], [b]) => {
      const none = (x) => x === null || x === undefined || x === "";
      if (none(a) || none(b)) return none(a) - none(b); // what is not known comes last, whichever way
      return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    });
    this.shown = keyed.map(([, row]) => row);
    this.columns.forEach((c, i) => this.heads[i].setAttribute("aria-sort", c.key !== key ? "none" : down ? "descending" : "ascending"));
    this.el.setAttribute("aria-rowcount", String(this.shown.length + 1));
    this.space.style.height = `${this.shown.length * ROW}px`;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.body.scrollTop / ROW) - MORE);
    const last = Math.min(this.shown.length, Math.ceil((this.body.scrollTop + (this.body.clientHeight || 400)) / ROW) + MORE);
    if (!this.shown.some((row) => row.id === this.active)) this.active = this.shown[first]?.id ?? "";
    const seen = new Map();
    const at = this.shown.findIndex((row) => row.id === this.active);
    if (at >= 0 && at < first) this.place(at, seen); // tab has to find it
    for (let i = first; i < last; i++) this.place(i, seen);
    if (at >= last) this.place(at, seen);
    for (const [id, one] of this.drawn) if (!seen.has(id)) one.el.remove();
    let next = this.space.firstChild;
    for (const { el } of seen.values()) {
      if (el === next) next = next.nextSibling;
      else this.space.insertBefore(el, next);
    }
    this.drawn = seen;
  }

  // The element of a row: one that was drawn stays, so that focus and a click that has begun stay on it.
  place(i, seen) {
    const row = this.shown[i];
    const one = this.drawn.get(row.id) ?? { el: h("div", { role: "row", class: "row", "data-id": row.id, id: `${this.id}-${row.id}`, onclick: () => this.choose(row.id) }) };
    if (one.row !== row) {
      one.row = row;
      fill(one.el, this.columns.map((c) => {
        const found = c.cell ? c.cell(row) : row[c.key] ?? "–";
        return h("div", { role: "gridcell", class: this.kind(c), title: typeof found === "string" && found.length > 14 ? found : undefined }, found);
      }));
    }
    if (one.at !== i) {
      one.at = i;
      one.el.style.top = `${i * ROW}px`;
      one.el.setAttribute("aria-rowindex", String(i + 2));
    }
    const tab = row.id === this.active ? "0" : "-1";
    if (one.el.getAttribute("tabindex") !== tab) one.el.setAttribute("tabindex", tab);
    seen.set(row.id, one);
  }

  choose(id) {
    this.active = id;
    this.draw();
    this.open(this.drawn.get(id).row);
  }

  find(id) {
    return this.drawn.get(id)?.el;
  }

  key(event) {
    const at = this.shown.findIndex((row) => row.id === this.active);
    const page = Math.max(1, Math.floor(this.body.clientHeight / ROW) - 1);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.shown.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.go(Math.max(0, Math.min(this.shown.length - 1, to)));
    } else if ((event.key === "Enter" || event.key === " ") && this.shown[at]) {
      event.preventDefault();
      this.open(this.shown[at]);
    }
  }

  go(i) {
    if (!this.shown[i]) return;
    this.active = this.shown[i].id;
    const top = i * ROW;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + ROW > this.body.scrollTop + this.body.clientHeight) this.body.scrollTop = top + ROW - this.body.clientHeight;
    this.draw();
    this.find(this.active)?.focus({ preventScroll: true });
  }

  end() {
    this.watcher.disconnect();
  }
}
