// All campaigns, and one campaign as it goes on.

import { get, post } from "./client.js";
import { bytes, chip, empty, fill, h, hours, meter, num, percent, unit, when, withError } from "./dom.js";
import { estimated } from "./estimate.js";
import { Convergence, Plane, SliceLine, legend } from "./plots.js";
import { showCampaignRun } from "./sheet.js";
import { has } from "./store.js";
import { Table } from "./table.js";

export function campaigns(store) {
  const list = h("div", { class: "cards" });
  const tiles = h("div", { class: "tiles" });
  const el = h("div", {}, tiles, list);
  function update(kinds) {
    if (!has(kinds, "runs", "progress", "approvals", "costs")) return;
    const all = store.campaigns;
    const rows = [...store.rows.values()];
    const going = rows.filter((row) => row.state === "running").length;
    const waiting = rows.filter((row) => row.state === "pending").length;
    const whole = store.costs.workspace ?? {};
    fill(tiles, tile("Running", going, waiting ? `${waiting} waiting` : "nothing waits"), tile("Campaigns", all.length, `${all.filter((c) => c.state === "running").length} going on`), tile("Single runs", rows.length - all.length, `${rows.filter((r) => r.state === "failed").length} failed`), tile("Node-hours", hours(whole.node_hours ?? 0), `${hours(whole.committed_node_hours ?? 0)} committed`));
    fill(list, all.length ? all.slice(0, 200).map((c) => card(c, store.progress[c.id])) : empty("No campaign yet", "A campaign looks for the best point of an app, run by run.", store.may("run") && h("a", { class: "button", href: "#/start" }, "Start one")));
  }
  return { title: "Campaigns", el, update };
}

const tile = (name, value, more) => h("div", { class: "tile" }, h("div", { class: "soft" }, name), h("div", { class: "figure" }, value), h("div", { class: "soft small" }, more));

// A campaign by its own name; those of older workspaces have none on record.
const nameOf = (c) => c.label || c.app;

function card(c, p) {
  const words = p ? `${num(p.done)}${p.of ? ` of ${num(p.of)}` : ""} runs` : c.campaign_runs ? `up to ${num(c.campaign_runs)} runs` : "";
  return h("a", { class: "card", href: `#/campaign/${encodeURIComponent(c.id)}`, id: `card-${c.id}` }, h("div", { class: "card-head" }, h("strong", {}, nameOf(c)), chip(c.state)),
    p && meter(p.share, `Progress of ${nameOf(c)}`), h("div", { class: "soft small row-between" }, h("span", {}, [c.label && c.label !== c.app && c.app, words, c.site].filter(Boolean).join(" · ")), h("span", {}, c.state === "running" ? `since ${when(c.asked_at)}` : when(c.ended_at ?? c.asked_at))));
}

// The runs of one campaign, by their cursor.
class Runs {
  constructor(id) {
    this.id = id;
    this.after = "";
    this.rows = new Map();
    this.order = [];
    this.about = null;
    this.totals = { planned: 0, done: 0, by_state: {}, failures: {}, node_hours: 0 };
  }

  async read() {
    let more = true;
    while (more) {
      const said = await get(`campaign/${encodeURIComponent(this.id)}/runs?after=${encodeURIComponent(this.after)}`);
      if (said.anew) this.rows.clear();
      this.about = said.about ?? this.about;
      this.totals = said.totals;
      this.take(said.runs);
      this.after = this.about ? said.after : "";
      more = said.more && Boolean(this.about);
    }
    this.order = [...this.rows.values()];
  }

  take(c) {
    const tables = ["params", "metrics", "uncertainty"];
    c.id.forEach((id, i) => {
      const row = { id, index: c.index[i], state: c.state[i], role: c.role[i], batch: c.batch[i], failure: c.failure[i], keeps: c.keeps[i], wall_s: c.wall_s[i], node_hours: c.node_hours[i], ended_at: c.ended_at[i] };
      for (const table of tables) {
        row[table] = {};
        for (const [name, values] of Object.entries(c[table])) if (values[i] !== null) row[table][name] = values[i];
      }
      this.rows.set(id, row);
    });
  }
}

export function campaign(store, id, announce) {
  const runs = new Runs(id);
  const open = (row) => showCampaignRun(id, row, runs.about);
  const plane = new Plane(open), convergence = new Convergence();
  const parts = Object.fromEntries(["head", "tiles", "choose", "scale", "failures", "slices", "table", "answer", "report"].map((name) => [name, h("div", { class: `part-${name}` })]));
  const courseHead = h("h2", {}, "Convergence"), courseNote = h("p", { class: "soft small", id: "convergence-note" }, "Each completed run by its number, as in the table; the line is the best measured up to it. Hollow: breaks a limit.");
  const pictures = h("div", { class: "two" }, h("section", { class: "panel" }, h("h2", {}, "Plane"), parts.choose, plane.el, parts.scale), h("section", { class: "panel" }, courseHead, courseNote, convergence.el));
  const body = h("div", { hidden: true }, parts.tiles, parts.answer, pictures, parts.slices, parts.failures, h("section", { class: "panel" }, h("h2", {}, "Runs"), parts.table), parts.report);
  const el = h("div", {}, parts.head, body);
  let table = null, standing = null, chosen = {}, busy = false, again = false, ended = false, asking = 0, pace = 3000;

  async function read() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      do {
        again = false;
        await runs.read();
        if (!ended) draw();
        if (Date.now() - asking > pace || !standing || row()?.state !== "running") {
          asking = Date.now();
          standing = await get(`campaign/${encodeURIComponent(id)}`);
          pace = Math.max(3000, 15 * (Date.now() - asking)); // of very many runs it takes the service a while
          if (!ended) draw();
          if (working() && !ended) setTimeout(() => { asking = 0; read(); }, 1500);
        }
      } while (again && !ended);
    } catch (error) {
      fill(parts.head, h("p", { class: "error" }, error.message));
    } finally {
      busy = false;
    }
  }

  const row = () => store.rows.get(id);
  // Of a campaign that has ended, an answer of all its runs follows; one that goes on is asked again with its next run.
  const working = () => standing.answer_state === "running" || (standing.answer_handle && row()?.state !== "running");

  function draw() {
    head();
    if (!runs.about) return;
    body.hidden = false;
    const about = runs.about, goal = about.goals[0]; // a sweep has none
    const metric = about.metrics.find((m) => m.name === (goal?.metric ?? about.shown[0])) ?? about.metrics[0];
    if (!table) begin(about, metric);
    tiles(about, metric, goal);
    answer(metric);
    pictureAll(about, metric, goal);
    failures();
    table.set(runs.order);
  }

  function question() {
    const about = runs.about;
    if (about && !about.goals.length) return `Sweep of ${about.parameters.map((p) => p.name).join(", ")}`;
    return standing?.question || about?.question || "It has not begun yet.";
  }

  function head() {
    const c = row() ?? standing ?? {};
    const going = c.state === "running";
    const stop = h("button", { type: "button", id: "stop", class: "danger", onclick: () => act("stop", {}, "The campaign is asked to stop; what has finished is kept.", "Stop this campaign? What has finished is kept, and it can be extended.") }, "Stop");
    fill(parts.head, h("div", { class: "campaign-head" }, h("div", {}, h("p", { class: "question" }, question()),
      h("p", { class: "soft" }, [standing?.policy || runs.about?.policy, c.site && `on ${c.site}`, c.owner && `by ${c.owner}`, c.asked_at && `since ${when(c.asked_at)}`].filter(Boolean).join(" · ")), standing?.note && h("p", { class: "soft" }, standing.note)),
      h("div", { class: "actions" }, chip(c.state ?? "pending"), going && store.may("run") && stop)));
    if (!going && c.state && store.may("run") && !extension.parentNode) parts.report.after(extension);
    if (going) extension.remove();
  }

  async function act(what, asked, done, sure) {
    if (sure && !confirm(sure)) return;
    try {
      await post(`campaign/${encodeURIComponent(id)}/${what}`, asked);
      announce(done);
    } catch (error) {
      announce(error.message, true);
    }
  }

  const price = h("div", { class: "whole", role: "status" });
  const unpriced = () => { priced = null; fill(price); }; // what was said is of other numbers
  let priced = null;
  const runsField = h("input", { id: "extend-runs", type: "number", min: "1", step: "1", required: true, oninput: unpriced });
  const hoursField = h("input", { id: "extend-hours", type: "number", min: "0", step: "any", oninput: unpriced });
  const farther = () => ({ max_runs: Number(runsField.value), ...(hoursField.value && { node_hours: Number(hoursField.value) }) });
  async function look() {
    if (!extension.reportValidity()) return;
    const mine = priced = {};
    const say = (...said) => { if (mine === priced) fill(price, ...said); };
    try {
      say(estimated(await post(`campaign/${encodeURIComponent(id)}/extend/estimate`, farther())));
    } catch (error) {
      say(h("p", { class: "error" }, error.message));
    }
  }
  const extension = h("form", { class: "panel inline", onsubmit: (event) => {
    event.preventDefault();
    act("extend", farther(), "It goes on.");
    unpriced();
  } }, h("h2", {}, "Go on with it"), h("label", {}, "Runs in all", runsField), h("label", {}, "Node-hours in all at most (optional)", hoursField), h("button", { type: "button", class: "plain", id: "extend-estimate", onclick: look }, "Estimate"), h("button", { type: "submit" }, "Extend"), price);

  function begin(about, metric) {
    const first = about.parameters.filter((p) => p.kind !== "text");
    chosen = { x: first[0]?.name, y: (first[1] ?? first[0])?.name, value: metric.name };
    const select = (label, key, names) => h("label", {}, h("span", {}, label), h("select", { id: `plane-${key}`, onchange: (event) => { chosen[key] = event.target.value; draw(); } }, names.map((n) => h("option", { value: n, selected: n === chosen[key] }, n))));
    const names = first.map((p) => p.name);
    const seen = about.metrics.filter((m) => runs.order.some((r) => m.name in r.metrics) || m.name === metric.name || (!about.goals.length && about.shown.includes(m.name)));
    fill(parts.choose, h("div", { class: "selects" }, select("Across", "x", names), select("Up", "y", names), select("Colour", "value", seen.map((m) => m.name))));
    const others = (about.goals.length ? about.limits.map((l) => l.metric) : about.shown).filter((n) => n !== metric.name);
    const shown = [metric, ...others.map((n) => about.metrics.find((m) => m.name === n)).filter(Boolean)].slice(0, about.goals.length ? 3 : 6);
    const title = (m) => `${m.name}${m.unit === "1" ? "" : ` (${m.unit})`}`;
    table = new Table({ id: "runs", label: "Runs of the campaign", open, height: 14 * 36, sort: { key: "index", down: true }, columns: [
      { key: "index", title: "Run", numeric: true, narrow: "3.6rem", width: "4.5rem" },
      { key: "state", title: "State", narrow: "minmax(0,1fr)", width: "9.5rem", cell: (r) => chip(r.state, r.failure ?? r.state) },
      ...first.slice(0, 4).map((p) => ({ key: `p-${p.name}`, title: title(p), numeric: p.kind !== "choice", value: (r) => r.params[p.name], cell: (r) => num(r.params[p.name]) })),
      ...shown.map((m, i) => ({ key: `m-${m.name}`, title: title(m), numeric: true, narrow: i === 0 ? "minmax(0,1.2fr)" : false, width: "minmax(0,1.3fr)", value: (r) => r.metrics[m.name], cell: (r) => withError(r.metrics[m.name], r.uncertainty[m.name]) })),
      { key: "wall_s", title: "Wall (s)", numeric: true, width: "5.5rem", cell: (r) => num(r.wall_s, 3) },
    ] });
    fill(parts.table, h("p", { class: "soft small" }, "Enter or a click opens a run."), table.el);
    fill(parts.report, report());
    if (about.goals.length) fill(parts.slices, slices(about)); // a sweep has no model
    else fill(courseHead, "Runs by number"), fill(courseNote, "Each completed run by its number, as in the table: the metric that colours the plane.");
    runsField.value = String(2 * (standing?.runs.most ?? runs.totals.planned));
  }

  function pictureAll(about, metric, goal) {
    const by = Object.fromEntries(about.parameters.map((p) => [p.name, p]));
    const value = about.metrics.find((m) => m.name === chosen.value);
    const best = standing?.answer?.best?.params;
    const same = (r) => best && about.parameters.every((p) => best[p.name] === undefined || best[p.name] === r.params[p.name]);
    const points = runs.order.map((r) => ({ x: r.params[chosen.x], y: r.params[chosen.y], value: r.metrics[chosen.value], state: r.state, row: r, best: r.state === "completed" && same(r) })).filter((p) => p.x !== undefined && p.y !== undefined);
    if (by[chosen.x]) plane.set(points, by[chosen.x], by[chosen.y], value);
    fill(parts.scale, typeof plane.low === "number" && legend(plane.low, plane.high, value.name, value.unit), h("p", { class: "soft small" }, "Cross: failed. Ring: running", best ? "; large ring: the best so far." : "."));
    const course = goal ? metric : value;
    const done = runs.order.filter((r) => r.state === "completed" && typeof r.metrics[course.name] === "number").sort((a, b) => a.index - b.index);
    let top = null;
    const keeps = done.map((r) => r.keeps !== false);
    const line = goal && done.map((r, i) => {
      const v = r.metrics[course.name];
      if (keeps[i] && (top === null || goal.sign * v > goal.sign * top)) top = v;
      return top;
    });
    convergence.set(done.map((r) => r.index), done.map((r) => r.metrics[course.name]), keeps, line, course);
  }

  function tiles(about, metric, goal) {
    const t = runs.totals, most = standing?.runs.most, cap = standing?.node_hours_at_most, spent = Math.max(t.node_hours, standing?.node_hours ?? 0);
    const best = standing?.answer?.best;
    const points = new Set(runs.order.filter((r) => r.state === "completed").map((r) => JSON.stringify(about.parameters.map((p) => r.params[p.name])))).size;
    const failed = Object.values(t.failures).reduce((a, b) => a + b, 0);
    fill(parts.tiles, h("div", { class: "tiles" },
      h("div", { class: "tile" }, h("div", { class: "soft" }, "Runs"), h("div", { class: "figure" }, num(t.done), most ? h("span", { class: "of" }, ` of ${num(most)}`) : ""), meter(most ? t.done / most : null, "Runs that have ended")),
      !goal ? tile("Points", num(points), "with a completed run; a sweep has no best one") : h("div", { class: "tile" }, h("div", { class: "soft" }, `Best ${metric.name}`), h("div", { class: "figure" }, best ? goalText(best, metric) : "–", best && h("span", { class: "of" }, unit(metric.unit))), h("div", { class: "soft small" }, best ? aboutBest(best, metric, t) : standing?.answer_state === "running" ? "being worked out" : "none yet")),
      h("div", { class: "tile" }, h("div", { class: "soft" }, "Node-hours"), h("div", { class: "figure" }, hours(spent), cap ? h("span", { class: "of" }, ` of ${num(cap, 3)}`) : ""), cap ? meter(spent / cap, "Node-hours of the cap") : h("div", { class: "soft small" }, "no cap was set")),
      h("div", { class: "tile" }, h("div", { class: "soft" }, "Failed"), h("div", { class: "figure" }, num(failed)), h("div", { class: "soft small" }, t.done ? `${num(100 * failed / t.done, 2)} % of those that ended` : "none has ended"))));
  }

  // What the models of all runs expect there, with its error; where there are none, what the runs there have measured.
  function goalText(best, metric) {
    if (best.expected?.[metric.name] !== undefined) return withError(best.expected[metric.name], best.expected_error[metric.name]);
    return withError(best.metrics[metric.name], best.uncertainty[metric.name]);
  }

  function aboutBest(best, metric, totals) {
    const of = standing.answer_of_runs ?? totals.done, count = `${num(of)} run${of === 1 ? "" : "s"}`;
    const how = best.estimated?.includes(metric.name) ? "estimated from CPU time" : "measured";
    const modelled = best.expected?.[metric.name] !== undefined;
    const said = modelled ? `by the models of ${count}; ${how} there: ${withError(best.metrics[metric.name], best.uncertainty[metric.name])}${unit(metric.unit)}` : `${how}; best of ${count}`;
    const sure = (modelled ? best.expected_error : best.uncertainty)?.[metric.name] > 0 ? "" : "; its error is not known";
    const limits = !runs.about.limits.length || best.probability_feasible == null ? "" : `; keeps the limits with ${percent(best.probability_feasible)}`;
    const newer = of < totals.done && (standing.answer_handle || standing.answer_state === "running") ? `; that of all ${num(totals.done)} runs is being worked out` : "";
    return `${said}${sure}${limits}${newer}`;
  }

  function answer(metric) {
    const a = standing?.answer;
    if (!a?.best) { fill(parts.answer); return; }
    const b = a.best;
    fill(parts.answer, h("section", { class: "panel" }, h("h2", {}, "Best so far"), h("p", { class: "point" }, Object.entries(b.params).map(([name, v]) => h("span", { class: "pair" }, h("span", { class: "soft" }, `${name} `), `${num(v, 5)}${unit(runs.about.fixed_units[name])}`))),
      a.expected_regret && h("p", { class: "soft" }, a.expected_regret.text), b.ties?.length > 0 && h("p", { class: "soft" }, `${b.ties.length} other point${b.ties.length === 1 ? "" : "s"} cannot be told from it.`), a.remarks?.length > 0 && h("details", {}, h("summary", {}, "Remarks"), h("ul", {}, a.remarks.map((r) => h("li", {}, r))))));
  }

  function failures() {
    const kinds = Object.entries(runs.totals.failures).sort((a, b) => b[1] - a[1]);
    const most = kinds[0]?.[1] ?? 1;
    fill(parts.failures, kinds.length > 0 && h("section", { class: "panel" }, h("h2", {}, "Failures by kind"), h("ul", { class: "bars" }, kinds.map(([name, n]) => h("li", {}, h("span", { class: "bar-name" }, name), h("span", { class: "bar", "aria-hidden": "true" }, h("span", { style: `width:${100 * n / most}%` })), h("span", { class: "number" }, n))))));
  }

  // The models along each parameter, through the answer; worked out when somebody asks.
  let lines = [];
  function slices(about) {
    const place = h("div", { "aria-live": "polite" }), choose = h("div", { class: "selects" });
    const button = h("button", { type: "button", id: "slices", class: "plain", onclick: work }, "Work them out");
    const end = () => { for (const one of lines) one.end(); lines = []; };

    async function work() {
      button.disabled = true;
      end();
      fill(choose);
      fill(place, h("p", { class: "soft" }, "A model is made of the runs …"));
      try {
        let said = await post(`campaign/${encodeURIComponent(id)}/slices`);
        while (said.state === "running" && !ended) said = await get(`answer/${encodeURIComponent(said.handle)}`);
        if (said.error) throw new Error(said.error);
        if (!ended) show(said.answer);
      } catch (error) {
        fill(place, h("p", { class: "error" }, error.message));
      }
      button.disabled = false;
      button.textContent = "Work them out anew";
    }

    function show(found) {
      if (!found.slices.length) { fill(place, h("p", { class: "soft" }, found.note)); return; }
      const names = [...new Set(found.slices.map((s) => s.metric))];
      const draw = (name) => {
        end();
        const grid = h("div", { class: "slices" });
        fill(place, grid, h("p", { class: "soft small" }, "Line: the model, the other parameters as at the best point (dotted). Band: the function lies in it with 90 %. Points: runs near it; dashed: a limit."));
        for (const s of found.slices.filter((one) => one.metric === name)) {
          const line = new SliceLine();
          lines.push(line);
          grid.append(line.el);
          line.set(s, about.parameters.find((p) => p.name === s.parameter), about.metrics.find((m) => m.name === s.metric), found.point[s.parameter]);
        }
      };
      if (names.length > 1) fill(choose, h("label", {}, h("span", {}, "Metric"), h("select", { id: "slice-metric", onchange: (e) => draw(e.target.value) }, names.map((n) => h("option", { value: n }, n)))));
      draw(names[0]);
    }
    return h("section", { class: "panel" }, h("div", { class: "row-between" }, h("h2", {}, "Slices"), button), choose, place);
  }

  function report() {
    const place = h("div", { "aria-live": "polite" });
    const button = h("button", { type: "button", id: "report", class: "plain", onclick: async () => {
      button.disabled = true;
      fill(place, h("p", { class: "soft" }, "The report is written …"));
      try {
        let said = await post(`campaign/${encodeURIComponent(id)}/report`);
        while (said.state === "running" && !ended) said = await get(`answer/${encodeURIComponent(said.handle)}`);
        if (said.error) throw new Error(said.error);
        await pictures_(place);
      } catch (error) {
        fill(place, h("p", { class: "error" }, error.message));
      }
      button.disabled = false;
    } }, "Write the report with its pictures");
    return h("section", { class: "panel" }, h("h2", {}, "Report"), h("p", { class: "soft" }, "Its pictures: what a model makes of the runs, and how good the model is."), button, place);
  }

  async function pictures_(place) {
    const { files } = await get(`run/${encodeURIComponent(id)}/files`);
    const found = files.filter((f) => f.path.startsWith("report/") && f.path.endsWith(".png")).slice(0, 12);
    const images = await Promise.all(found.map(async (f) => [f, await get(`run/${encodeURIComponent(id)}/file?path=${encodeURIComponent(f.path)}`)]));
    fill(place, images.length ? h("div", { class: "images" }, images.map(([f, p]) => h("figure", {}, h("img", { src: `data:image/png;base64,${p.data}`, alt: `Picture of the report: ${words(f.path)}` }), h("figcaption", { class: "soft small" }, `${words(f.path)}, ${bytes(f.bytes)}`)))) : h("p", {}, "The report is in the campaign's folder, report/report.md; it has no pictures (is matplotlib installed?)."));
  }
  const words = (path) => path.split("/").pop().replace(/\.png$/, "").replaceAll("_", " ");

  read();
  return {
    title: row() ? nameOf(row()) : "Campaign",
    el,
    update(kinds) {
      head();
      if (has(kinds, "runs", "progress")) {
        const now = JSON.stringify([row()?.state, store.progress[id]?.done]);
        if (now !== this.seen) { this.seen = now; read(); }
      }
    },
    end() {
      ended = true;
      plane.end();
      convergence.end();
      for (const one of lines) one.end();
      table?.end();
    },
  };
}
