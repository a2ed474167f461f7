// What a run, a campaign or more of one would take, before it is asked for.

import { atMost, facts, h, num, span } from "./dom.js";

const known = (e) => (e.node_hours != null ? num(e.node_hours) : e.runs === null ? "not known, as nothing says how many runs" : "nothing is known yet");
const runs = (e) => (e.runs_in_all === undefined ? ["Runs", e.runs === undefined ? null : e.runs ?? "no bound"] : ["Runs on top", e.runs === null ? "no bound" : `${num(e.runs)} (${num(e.runs_in_all)} in all)`]);

export const estimated = (e) => {
  const onTop = e.runs_in_all !== undefined, wall = e.wall_s_per_run ?? e.wall_s;
  return h("section", { class: "estimate" }, h(onTop ? "h3" : "h2", {}, onTop ? "What it would take on top" : "What it would take"), facts([["Site", e.site], runs(e), ["Wall time of a run", wall == null ? null : span(wall)], ["Node-hours expected", known(e)], ["Node-hours at most", e.node_hours_at_most === null ? "nothing bounds them" : atMost(e.node_hours_at_most)], ["Cost at most", e.usd_at_most == null ? null : `${atMost(e.usd_at_most)} USD`], ["By", e.from]]),
    e.known && h("p", {}, "The very same is known already: it would be found, not run again."), e.approval && h("p", { class: "note warn" }, `A person has to say yes: ${e.approval}.`), e.refused && h("p", { class: "note bad" }, `It would be refused (${e.refused.check}): ${e.refused.why}.`), !e.approval && !e.refused && h("p", { class: "note good" }, "Nobody has to approve it."));
};
