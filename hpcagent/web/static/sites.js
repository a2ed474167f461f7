// Where things run, what holds there, and the jobs that the sites have had.

import { get } from "./client.js";
import { table } from "./costs.js";
import { fill, h, num, span, when } from "./dom.js";
import { has } from "./store.js";

export function sites(store) {
  const cards = h("div", { class: "cards" }), jobs = h("section", { class: "panel" }), rules = h("section", { class: "panel" });
  const el = h("div", {}, cards, jobs, rules);
  let asked = 0, ended = false;
  async function read() {
    asked = Date.now();
    try {
      const found = (await get("jobs")).jobs;
      if (ended) return;
      fill(jobs, h("h2", {}, "Jobs"), found.length ? table("Jobs of the sites", ["Job", "Site", "State", "Nodes", "Submitted", "Started", "Ended"], found.map((j) => [`${j.scheduler} ${j.job_id ?? "(not accepted yet)"}`, j.site, j.state, num(j.nodes), when(j.submitted_at), when(j.started_at), when(j.ended_at)])) : h("p", { class: "soft" }, "No scheduler has had a job of this workspace yet."));
    } catch (error) {
      fill(jobs, h("h2", {}, "Jobs"), h("p", { class: "error" }, error.message));
    }
  }
  function update(kinds) {
    if (has(kinds, "runs")) {
      const all = [...store.rows.values()];
      const used = (s) => all.some((r) => r.site === s.name) || s.default;
      fill(cards, [...(store.sites ?? [])].sort((a, b) => used(b) - used(a)).map((s) => h("article", { class: "card" }, h("div", { class: "card-head" }, h("strong", {}, s.name), h("span", { class: "soft small" }, [s.kind, s.default && "default"].filter(Boolean).join(" · "))), h("p", { class: "soft" }, s.description),
        h("p", { class: "small" }, [`${all.filter((r) => r.site === s.name && r.state === "running").length} running`, s.usd_per_node_hour == null ? null : `${num(s.usd_per_node_hour)} USD a node-hour`, ...new Set((s.blocks ?? []).map((b) => `jobs of ${b.nodes ?? 1} node${(b.nodes ?? 1) === 1 ? "" : "s"}${b.walltime_s ? ` for ${span(b.walltime_s)}` : ""}`))].filter(Boolean).join(" · ")))));
    }
    if (has(kinds, "news")) fill(rules, h("h2", {}, "Rules"), store.rules?.length ? h("ul", {}, store.rules.map((r) => h("li", {}, r))) : h("p", { class: "soft" }, "workspace.toml sets no quota and asks nobody."), store.news.length > 0 && [h("h2", {}, "News of the service"), h("ul", {}, [...store.news].reverse().map((n) => h("li", {}, n)))]);
    if (Date.now() - asked > 10000) read();
  }
  return { title: "Sites", el, update, end: () => { ended = true; } };
}
