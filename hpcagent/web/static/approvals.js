// What waits for a person: what would run, where, at what cost at most, and why somebody has to decide.

import { post } from "./client.js";
import { atMost, chip, empty, facts, fill, h, num, unit, when } from "./dom.js";
import { has } from "./store.js";

export function approvals(store, announce) {
  const waiting = h("div"), decided = h("div");
  const cards = new Map();
  const el = h("div", { class: "narrow-page" }, waiting, decided);

  async function decide(one, grant, note) {
    try {
      await post(`approval/${encodeURIComponent(one.id)}`, { grant, note });
      announce(grant ? `Approved: ${one.words}` : `Denied: ${one.words}`);
    } catch (error) {
      announce(error.message, true);
    }
  }

  function card(one) {
    const a = one.asked, id = `note-${one.id}`;
    const note = h("input", { id, type: "text", maxlength: "500", autocomplete: "off" });
    const params = Object.entries(one.params ?? {});
    const button = (grant, words, kind) => h("button", { type: "button", class: kind, id: `${grant ? "grant" : "deny"}-${one.id}`, onclick: () => decide(one, grant, note.value) }, words);
    return h("article", { class: "panel approval", "aria-label": one.words }, h("h2", {}, one.words), h("p", {}, h("strong", {}, "Why somebody has to decide: "), one.why), one.asked_why && h("p", {}, h("strong", {}, "What it is for: "), one.asked_why, h("span", { class: "soft" }, ` (${one.asked_by} says)`)),
      facts([["Asked by", one.asked_by], ["Asked", when(one.asked_at)], ["Expires", when(one.expires_at)], ["Site", a.site], ["Nodes", a.nodes], ["Runs at most", a.runs], ["Node-hours at most", a.node_hours == null ? "nothing bounds them" : atMost(a.node_hours)], ["Node-hours expected", a.expected_node_hours == null ? null : num(a.expected_node_hours)], ["Cost at most", a.usd == null ? null : `${atMost(a.usd)} USD`], ["Code", a.own ? "not the library's own" : null]]),
      params.length > 0 && h("details", {}, h("summary", {}, `${params.length} parameter${params.length === 1 ? "" : "s"}`), facts(params.map(([n, v]) => [n, `${v}${unit(one.param_units[n])}`]))),
      store.may("approve") ? h("div", { class: "decide" }, h("label", { for: id }, "Note (optional)"), note, h("div", { class: "actions" }, button(true, "Approve", ""), button(false, "Deny", "danger"))) : h("p", { class: "soft" }, `The role ${store.me?.role} cannot decide it.`));
  }

  function update(kinds) {
    if (!has(kinds, "approvals")) return;
    const pending = store.pending;
    // A card stays as it is while somebody writes a note in it.
    for (const id of [...cards.keys()]) if (!pending.some((one) => one.id === id)) cards.delete(id);
    for (const one of pending) if (!cards.has(one.id)) cards.set(one.id, card(one));
    fill(waiting, pending.length ? pending.map((one) => cards.get(one.id)) : empty("Nothing waits for a yes", "What a rule of the workspace asks a person about comes here. Tools that wait are under Tools."));
    const rest = store.approvals.filter((one) => one.state !== "pending").slice(0, 50);
    fill(decided, rest.length > 0 && h("section", {}, h("h2", {}, "Decided"), h("ul", { class: "plain-list" }, rest.map((one) => h("li", {}, chip(one.state), h("span", {}, one.words, h("span", { class: "soft small" }, ` ${one.asked_by} asked${one.decided_by ? `, ${one.decided_by} decided` : ""}${one.note ? `: ${one.note}` : ""}`)))))));
  }
  return { title: "Approvals", el, update };
}
