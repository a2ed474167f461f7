// Every run and campaign that the caller may see.

import { chip, h, num, when } from "./dom.js";
import { showRun } from "./sheet.js";
import { has } from "./store.js";
import { Table } from "./table.js";

export function runs(store) {
  const open = (row) => { if (row.kind === "campaign") location.hash = `#/campaign/${encodeURIComponent(row.id)}`; else showRun(row, store); };
  const table = new Table({ id: "all", label: "Runs and campaigns", open, height: 0, sort: { key: "asked_at", down: true }, columns: [
    { key: "state", title: "State", narrow: "minmax(0,1fr)", width: "9.5rem", cell: (r) => chip(r.state, r.failure ?? r.state) },
    { key: "app", title: "App", narrow: "minmax(0,1fr)", width: "minmax(0,1fr)", cell: (r) => (r.kind === "campaign" ? [h("span", { class: "mark" }, "campaign"), ` ${r.label || r.app}`] : r.label || r.app), value: (r) => r.label || r.app },
    { key: "point", title: "Parameters", width: "minmax(0,2.4fr)" },
    { key: "site", title: "Site", width: "minmax(0,0.8fr)" },
    { key: "owner", title: "By", width: "minmax(0,0.6fr)" },
    { key: "asked_at", title: "Asked", numeric: true, narrow: "5.5rem", width: "8rem", cell: (r) => when(r.asked_at) },
    { key: "wall_s", title: "Wall (s)", numeric: true, width: "5.5rem", cell: (r) => num(r.wall_s, 3) },
  ] });
  table.body.classList.add("tall");
  const words = h("input", { id: "filter", type: "search", placeholder: "App, site, person, failure, value …", oninput: () => update(new Set(["runs"])) });
  const state = h("select", { id: "filter-state", onchange: () => update(new Set(["runs"])) }, ["", "running", "pending", "completed", "failed", "stopped", "cancelled"].map((s) => h("option", { value: s }, s || "any state")));
  const kind = h("select", { id: "filter-kind", onchange: () => update(new Set(["runs"])) }, [["", "runs and campaigns"], ["run", "single runs"], ["campaign", "campaigns"]].map(([v, t]) => h("option", { value: v }, t)));
  const count = h("p", { class: "soft small", role: "status" });
  const el = h("div", {}, h("form", { class: "filters", role: "search", onsubmit: (e) => e.preventDefault() }, h("label", { class: "grow" }, h("span", {}, "Filter"), words), h("label", {}, h("span", {}, "State"), state), h("label", {}, h("span", {}, "Kind"), kind)), count, table.el);
  const text = (r) => `${r.app} ${r.label} ${r.site} ${r.owner} ${r.failure ?? ""} ${r.point} ${r.id}`.toLowerCase();
  function update(kinds) {
    if (!has(kinds, "runs")) return;
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = [...store.rows.values()];
    const found = all.filter((r) => (!state.value || r.state === state.value) && (!kind.value || r.kind === kind.value) && (!wanted.length || wanted.every((w) => text(r).includes(w))));
    table.set(found);
    const said = found.length === all.length ? `${all.length.toLocaleString("en")} in all` : `${found.length.toLocaleString("en")} of ${all.length.toLocaleString("en")}`;
    if (count.textContent !== said) count.textContent = said;
  }
  return { title: "Runs", el, update, end: () => table.end() };
}
