// One run, in a sheet beside the page: what it was asked, what came out, its log, why it was suggested.

import { get, post } from "./client.js";
import { bytes, chip, facts, fill, h, num, span, unit, when, withError } from "./dom.js";
import { kept } from "./files.js";

let open = null;

export function closeSheet() {
  open?.dialog.close();
}

function sheet(title, state) {
  closeSheet();
  const body = h("div", { class: "sheet-body" }, h("p", { class: "soft" }, "Reading …"));
  const back = document.activeElement?.id;
  const dialog = h("dialog", { class: "sheet", "aria-labelledby": "sheet-title" },
    h("header", {}, h("h2", { id: "sheet-title", tabindex: "-1" }, title), h("span", { id: "sheet-state" }, chip(state)),
      h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, "✕")), body);
  const mine = { dialog, body };
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (open === mine) open = null;
    mine.ended = true;
    document.getElementById(back)?.focus({ preventScroll: true });
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.querySelector("#app").append(dialog);
  dialog.showModal();
  dialog.querySelector("h2").focus();
  open = mine;
  return mine;
}

const point = (params, units) => h("table", { class: "values" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Parameter"), h("th", { scope: "col", class: "number" }, "Value"))),
  h("tbody", {}, Object.entries(params ?? {}).map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, `${num(value, 6)}${unit(units?.[name])}`)))));

const metrics = (found) => h("table", { class: "values" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Metric"), h("th", { scope: "col", class: "number" }, "Value ± standard error"))),
  h("tbody", {}, Object.entries(found.metrics ?? {}).map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, `${withError(value, found.uncertainty?.[name])}${unit(found.units?.[name])}`)))));

const failure = (f) => f && h("section", { class: "note bad" }, h("h3", {}, f.name), h("p", {}, f.message), f.repair && h("p", { class: "soft" }, `What would probably help: ${f.repair}`));

function log(found) {
  const lines = found.log_tail?.length ? found.log_tail : (found.failure?.log_tail ?? "").split("\n").filter(Boolean);
  return h("section", {}, h("h3", {}, "Log, the last lines"), lines.length ? h("pre", { tabindex: "0", "aria-label": "The last lines of the log" }, lines.join("\n")) : h("p", { class: "soft" }, "Nothing was logged, or nothing is left of it."));
}

const cost = (c) => c && [["Wall time", span(c.wall_s)], ["Node-hours", num(c.node_hours)], ["CPU time", c.cpu_s == null ? null : span(c.cpu_s)]];

// A run of a campaign.
export async function showCampaignRun(campaign, row, about) {
  const mine = sheet(`Run ${row.index}`, row.state);
  let found;
  try {
    found = await get(`campaign/${encodeURIComponent(campaign)}/run/${encodeURIComponent(row.id)}`);
  } catch (error) {
    fill(mine.body, h("p", { class: "error" }, error.message));
    return;
  }
  const why = h("section", { "aria-live": "polite" }, h("h3", {}, "Why it was suggested"), h("p", { class: "soft" }, "Working it out …"));
  const varied = new Set(about.parameters.map((p) => p.name));
  const rest = Object.fromEntries(Object.entries(found.params).filter(([name]) => !varied.has(name)));
  const own = Object.fromEntries(Object.entries(found.params).filter(([name]) => varied.has(name)));
  fill(mine.body, failure(found.failure), Object.keys(found.metrics).length > 0 && metrics(found), point(own, about.fixed_units), why,
    facts([["Role", `${found.role}, batch ${found.batch}`], ["Where", [found.site, found.host].filter(Boolean).join(", on ")], ...(cost(found.cost) ?? []), ["Ended", when(found.ended_at)], ["Execution id", h("code", {}, found.id)]]),
    found.notes?.length > 0 && h("section", {}, h("h3", {}, "Notes"), h("ul", {}, found.notes.map((n) => h("li", {}, n)))),
    Object.keys(rest).length > 0 && h("details", {}, h("summary", {}, "Parameters that are not varied"), point(rest, about.fixed_units)), log(found), kept(mine, campaign, row.id));
  try {
    let said = await post(`campaign/${encodeURIComponent(campaign)}/explain`, { run: row.index });
    while (said.state === "running" && !mine.ended) said = await get(`answer/${encodeURIComponent(said.handle)}`);
    const a = said.answer;
    fill(why, h("h3", {}, "Why it was suggested"), a ? [h("p", {}, a.why || a.text), a.outcome && h("p", {}, h("strong", {}, "Outcome: "), a.outcome), a.notes?.map((n) => h("p", { class: "soft" }, n)),
      h("p", { class: "soft" }, `By ${a.policy}${a.purpose ? ` (${a.purpose})` : ""}${a.known == null ? "" : `; it knew ${a.known} result${a.known === 1 ? "" : "s"} then`}.`)] : h("p", { class: "soft" }, said.error ?? "It was not worked out."));
  } catch (error) {
    fill(why, h("h3", {}, "Why it was suggested"), h("p", { class: "error" }, error.message));
  }
}

// A single run of the workspace.
export async function showRun(row, store) {
  const mine = sheet(row.label || row.app, row.state);
  const list = kept(mine, row.id);
  const show = async () => {
    let found;
    try {
      found = await get(`run/${encodeURIComponent(row.id)}`);
    } catch (error) {
      fill(mine.body, h("p", { class: "error" }, error.message));
      return;
    }
    fill(mine.dialog.querySelector("#sheet-state"), chip(found.state));
    const going = !["completed", "failed", "stopped", "cancelled"].includes(found.state);
    const cancel = h("button", { type: "button", id: "cancel-run", class: "danger", onclick: async () => {
      if (!confirm("End this run? What it has taken is booked.")) return;
      try { await post(`run/${encodeURIComponent(row.id)}/cancel`); } catch (error) { fill(said, error.message); }
    } }, "Cancel the run");
    const said = h("p", { role: "status" });
    const p = found.progress, c = found.counters ?? {};
    fill(mine.body, p && h("section", {}, h("div", { class: "meter-row" }, h("div", {}, "Progress"), h("div", { class: "soft" }, `${num(p.done, 3)}${p.of ? ` of ${num(p.of, 3)}` : ""} ${p.unit}`)), bar(p), h("p", { class: "soft" }, p.from)),
      failure(found.failure), Object.keys(found.metrics).length > 0 && metrics(found), point(found.params, found.param_units),
      facts([["App", `${found.app} ${found.version}`], ["Site", found.site], ["Asked by", found.owner], ["Asked", when(found.asked_at)], ["Ended", found.ended_at ? when(found.ended_at) : null], ...(cost(found.cost) ?? []), ["Expected node-hours", num(found.estimated_node_hours)], ["Node", c.node], ["CPU use", c.cpu_use_percent == null ? null : `${num(c.cpu_use_percent, 3)} %`], ["Memory at most", c.max_rss_bytes ? bytes(c.max_rss_bytes) : null], ["Approval", found.approval], ["Run", h("code", {}, found.id)]]),
      c.jobs?.length > 0 && h("section", {}, h("h3", {}, "Jobs of its site meanwhile"), h("ul", {}, c.jobs.map((j) => h("li", {}, `${j.scheduler} ${j.job_id ?? ""}: ${j.state}${j.nodes ? `, ${j.nodes} node(s)` : ""}`)))),
      found.notes?.length > 0 && h("section", {}, h("h3", {}, "Notes"), h("ul", {}, found.notes.map((n) => h("li", {}, n)))), log(found), list, said, going && store.may("run") && cancel);
  };
  await show();
  const leave = store.listen((kinds) => {
    if (mine.ended) leave();
    else if (kinds.has("all") || (kinds.has("runs") && store.rows.get(row.id)?.state !== row.state) || (kinds.has("progress") && store.progress[row.id])) {
      row = store.rows.get(row.id) ?? row;
      show();
    }
  });
}

const bar = (p) => h("div", { class: "meter", role: "progressbar", "aria-label": "Progress", "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": p.share == null ? undefined : String(Math.round(100 * p.share)) }, h("div", { style: `width:${100 * (p.share ?? 0)}%` }));
