// What was spent, by person, and how good the estimates were.

import { bytes, fill, h, num, span } from "./dom.js";
import { has } from "./store.js";

const table = (label, heads, rows) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", { class: "plain-table" }, h("thead", {}, h("tr", {}, heads.map((t, i) => h("th", { scope: "col", class: i ? "number" : "" }, t)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => (i ? h("td", { class: "number" }, cell) : h("th", { scope: "row" }, cell))))))));

export function costs(store) {
  const el = h("div");
  function update(kinds) {
    if (!has(kinds, "costs")) return;
    const people = Object.entries(store.costs.people ?? {}), accuracy = Object.entries(store.costs.accuracy ?? {});
    const usd = people.some(([, p]) => p.usd);
    fill(el, h("section", { class: "panel" }, h("h2", {}, "Spent and committed"), table("Spent and committed by person", ["Person", "Node-hours", ...(usd ? ["USD"] : []), "Committed (node-hours)", "Going on", "Files"], people.map(([who, p]) => [who || "whole workspace", num(p.node_hours), ...(usd ? [num(p.usd)] : []), num(p.committed_node_hours), num(p.runs), bytes(p.bytes)]))),
      h("section", { class: "panel" }, h("h2", {}, "Estimated against actual"), accuracy.length ? table("Estimated against actual wall time by app", ["App", "Runs (of campaigns, too)", "Failed", "Asked for one by one", "Estimated (mean)", "Took (mean)", "Took / estimated (median)", "Within a factor of 2"], accuracy.map(([app, a]) => [app, num(a.runs), num(a.failed), num(a.asked), span(a.estimated_s), span(a.actual_s), num(a.actual_over_estimated, 3), a.within_factor_2 == null ? "–" : `${num(100 * a.within_factor_2, 3)} %`])) : h("p", { class: "soft" }, "No run has ended yet.")));
  }
  return { title: "Costs", el, update };
}

export { table };
