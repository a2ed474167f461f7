// A form made of an app's contract: one run, or a campaign that looks for the best point.

import { get, post } from "./client.js";
import { empty, facts, fill, h, num, span, unit } from "./dom.js";
import { estimated } from "./estimate.js";

const name = (p) => p.replace(/[^\w-]/g, "_");

// Why a text is no value of a parameter; empty where it is one.
function wrong(schema, text) {
  if (text === "") return schema.default === undefined ? "is needed" : "";
  if (schema.enum || schema.type === "string") return "";
  const value = Number(text);
  if (!Number.isFinite(value)) return "is no number";
  if (schema.type === "integer" && !Number.isInteger(value)) return "must be a whole number";
  const u = unit(schema.unit);
  if (schema.minimum !== undefined && value < schema.minimum) return `must be at least ${num(schema.minimum)}${u}`;
  if (schema.maximum !== undefined && value > schema.maximum) return `must be at most ${num(schema.maximum)}${u}`;
  if (schema.exclusiveMinimum !== undefined && value <= schema.exclusiveMinimum) return `must be more than ${num(schema.exclusiveMinimum)}${u}`;
  if (schema.exclusiveMaximum !== undefined && value >= schema.exclusiveMaximum) return `must be less than ${num(schema.exclusiveMaximum)}${u}`;
  return "";
}

const bounds = (s) => {
  const low = s.minimum ?? s.exclusiveMinimum, high = s.maximum ?? s.exclusiveMaximum;
  const u = unit(s.unit);
  if (low === undefined && high === undefined) return "";
  if (high === undefined) return s.minimum === undefined ? `more than ${num(low)}${u}` : `at least ${num(low)}${u}`;
  return low === undefined ? `at most ${num(high)}${u}` : `${num(low)} to ${num(high)}${u}`;
};

// A field with its label, unit, hint and error; `value()` is undefined where nothing is given.
class Field {
  constructor(id, label, schema, more = {}) {
    this.schema = schema;
    this.id = id;
    const hint = [more.hint ?? schema.description, bounds(schema)].filter(Boolean).join(" · ");
    const about = { id, "aria-describedby": `${id}-hint ${id}-error`, oninput: () => this.check(), ...more.attributes };
    this.input = schema.enum
      ? h("select", about, schema.enum.map((v) => h("option", { value: String(v), selected: v === schema.default }, more.words?.[v] ?? String(v))))
      : h("input", { ...about, type: "text", inputmode: schema.type === "string" ? "text" : "decimal", autocomplete: "off", spellcheck: "false", value: schema.default === undefined ? "" : String(schema.default) });
    this.error = h("span", { class: "error small", id: `${id}-error` });
    this.el = h("div", { class: "field" }, h("label", { for: id }, label), h("div", { class: "with-unit" }, this.input, schema.unit && schema.unit !== "1" && h("span", { class: "unit" }, schema.unit)),
      h("span", { class: "soft small", id: `${id}-hint` }, hint), this.error);
  }

  check() {
    const why = wrong(this.schema, this.input.value.trim());
    this.say(why);
    return !why;
  }

  say(why) {
    this.error.textContent = why ? why[0].toUpperCase() + why.slice(1) : "";
    if (why) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }

  value() {
    const text = this.input.value.trim();
    if (this.schema.enum) return this.schema.enum.find((v) => String(v) === text);
    if (text === "") return undefined;
    return this.schema.type === "string" ? text : Number(text);
  }
}

export function start(store, chosen, announce) {
  const form = h("div", {}, h("p", { class: "soft" }, "Reading …"));
  const about = h("span", { class: "soft small", id: "app-about" });
  const pick = h("div", { class: "panel" });
  const el = h("div", { class: "narrow-page" }, pick, form);
  let apps = [], what = "run", appField = null;

  async function begin() {
    if (!store.may("run")) {
      fill(el, empty("Not yours to start", `The role ${store.me.role} may look, but not run.`));
      return;
    }
    apps = (await get("apps")).apps.sort((a, b) => a.name.localeCompare(b.name));
    const option = (a) => h("option", { value: a.name, selected: a.name === chosen }, a.name);
    const tools = new Set(store.tools.map((t) => t.name));
    const own = apps.filter((a) => tools.has(a.name)), others = apps.filter((a) => !tools.has(a.name));
    const select = h("select", { id: "app-choice", onchange: () => show(select.value) }, h("option", { value: "" }, "Choose an app …"), own.length > 0 ? [h("optgroup", { label: "Tools of this workspace" }, own.map(option)), h("optgroup", { label: "Apps" }, others.map(option))] : others.map(option));
    appField = h("div", { class: "field" }, h("label", { for: "app-choice" }, "App"), select, about);
    const kind = (value, title, words) => h("label", { class: "choice" }, h("input", { type: "radio", name: "what", value, checked: value === what, onchange: () => { what = value; show(select.value); } }), h("span", {}, h("strong", {}, title), h("span", { class: "soft small" }, words)));
    fill(pick, appField, h("fieldset", {}, h("legend", {}, "What to start"), kind("run", "One run", "at the parameters that you give"), kind("campaign", "A campaign", "looks for the best point, run by run, under a cap"), kind("packaged", "A packaged campaign", "a question that comes with hpcagent, with its caps")));
    show(chosen ?? "");
  }

  async function show(app) {
    chosen = app;
    appField.hidden = what === "packaged";
    if (what === "packaged") {
      try {
        const found = (await get("configs")).campaigns;
        if (what === "packaged") fill(form, packagedForm(found));
      } catch (error) {
        fill(form, h("p", { class: "error" }, error.message));
      }
      return;
    }
    about.textContent = apps.find((a) => a.name === app)?.description ?? "";
    if (!app) {
      fill(form, empty("Which app?", "Its contract makes the form: parameters with units and bounds."));
      return;
    }
    try {
      const contract = await get(`apps/${encodeURIComponent(app)}`);
      if (chosen === app && what !== "packaged") fill(form, what === "run" ? runForm(contract) : campaignForm(contract));
    } catch (error) {
      fill(form, h("p", { class: "error" }, error.message));
    }
  }

  const site = () => new Field("site", "Site", { enum: store.sites.map((s) => s.name), default: store.defaultSite }, { hint: "where it runs" });
  const why = () => new Field("why", "What it is for", { type: "string", default: "" }, { hint: "one sentence, for whoever approves it (optional)" });

  function runForm(contract) {
    if (contract.inputs.length) return empty("It takes other runs as input", `${contract.name} needs ${contract.inputs.join(", ")}: start it from Python or the shell.`);
    const fields = Object.fromEntries(Object.entries(contract.schema.properties).map(([p, schema]) => [`params.${p}`, new Field(`f-${name(p)}`, p, schema)]));
    const wall = new Field("walltime", "Wall time at most", { type: "number", unit: "s", exclusiveMinimum: 0, default: "" }, { hint: contract.walltime_s === null ? "ends it then; needed under a quota or an approval of node-hours, as nothing else bounds them" : `ends it then (optional; without it after ${span(contract.walltime_s)})` });
    const more = { site: site(), walltime_s: wall, why: why() };
    const asked = () => {
      const params = {};
      for (const [key, field] of Object.entries(fields)) if (field.value() !== undefined) params[key.slice(7)] = field.value();
      return { app: contract.name, params, site: more.site.value() ?? "", walltime_s: wall.value() ?? null, why: more.why.value() ?? "" };
    };
    return filled({ ...fields, ...more }, [h("section", { class: "panel" }, h("h2", {}, "Parameters"), h("div", { class: "fields" }, Object.values(fields).map((f) => f.el))), h("section", { class: "panel" }, h("h2", {}, "Where, how long, why"), h("div", { class: "fields" }, Object.values(more).map((f) => f.el)))], asked, "run", "run/estimate", "Start the run", () => { location.hash = "#/runs"; });
  }

  function campaignForm(contract) {
    const properties = contract.schema.properties;
    const metrics = contract.metrics.map((m) => m.name);
    if (!metrics.length) return empty("Nothing to look for", `${contract.name} gives no number that could be made large or small.`);
    const first = contract.metrics.find((m) => m.direction) ?? contract.metrics[0];
    const goal = { metric: new Field("metric", "Metric", { enum: metrics, default: first.name }, { hint: "what is to be best" }), direction: new Field("direction", "Direction", { enum: ["maximize", "minimize"], default: first.direction ?? "maximize" }, { hint: "which way is better" }),
      limited: new Field("limited", "Limit on", { enum: ["none", ...metrics], default: "none" }, { hint: "a metric that has to keep a limit (optional)" }), side: new Field("side", "Which side", { enum: ["at_most", "at_least"], default: "at_most" }, { hint: "of the limit", words: { at_most: "at most", at_least: "at least" } }), limit: new Field("limit", "Limit", { type: "number", default: "" }, { hint: "in the metric's unit" }) };
    const unitOf = Object.fromEntries(contract.metrics.map((m) => [m.name, m.unit]));
    goal.limited.input.addEventListener("change", () => { document.getElementById("limit-hint").textContent = unitOf[goal.limited.value()] && unitOf[goal.limited.value()] !== "1" ? `in ${unitOf[goal.limited.value()]}` : "a pure number"; });
    const varied = contract.varied.filter((p) => properties[p]);
    const spaces = Object.fromEntries(varied.map((p, i) => {
      const s = properties[p];
      const use = h("input", { type: "checkbox", id: `vary-${name(p)}`, checked: i < 2, onchange: () => turn() });
      const fixed = new Field(`fixed-${name(p)}`, `${p}, in all runs`, s, { hint: "" });
      const low = s.enum ? null : new Field(`low-${name(p)}`, `${p}, lowest`, { ...s, default: s.minimum ?? "" }, { hint: "" });
      const high = s.enum ? null : new Field(`high-${name(p)}`, `${p}, highest`, { ...s, default: s.maximum ?? "" }, { hint: "" });
      const range = s.enum ? h("p", { class: "soft small" }, `one of ${s.enum.join(", ")}`) : h("div", { class: "fields" }, low.el, high.el);
      const turn = () => { range.hidden = !use.checked; fixed.el.hidden = use.checked; };
      turn();
      return [p, { use, low, high, fixed, schema: s, el: h("div", { class: "vary" }, h("label", { class: "check" }, use, h("span", {}, h("strong", {}, p), h("span", { class: "soft small" }, s.description))), range, h("div", { class: "fields" }, fixed.el)) }];
    }));
    const caps = { max_runs: new Field("max-runs", "Runs at most", { type: "integer", minimum: 1, maximum: 100000, default: 30 }, { hint: "" }), node_hours: new Field("node-hours", "Node-hours at most", { type: "number", exclusiveMinimum: 0, default: "" }, { hint: "a cap on all of them (optional)" }), site: site(), why: why() };
    const fields = { ...goal, ...caps };
    for (const [p, s] of Object.entries(spaces)) if (s.low) { fields[`space.${p}.low`] = s.low; fields[`space.${p}.high`] = s.high; }
    for (const [p, s] of Object.entries(spaces)) fields[`fixed.${p}`] = s.fixed;
    const asked = () => {
      const space = {};
      for (const [p, s] of Object.entries(spaces)) if (s.use.checked) space[p] = s.schema.enum ? { choices: s.schema.enum } : { low: s.low.value(), high: s.high.value() };
      const limits = goal.limited.value() === "none" ? {} : { [goal.limited.value()]: { [goal.side.value()]: goal.limit.value() ?? 0 } };
      const fixed = {};
      for (const [p, s] of Object.entries(spaces)) if (!s.use.checked && s.fixed.value() !== undefined && s.fixed.value() !== s.schema.default) fixed[p] = s.fixed.value();
      return { app: contract.name, fixed, metric: goal.metric.value(), direction: goal.direction.value(), limits, space, max_runs: caps.max_runs.value(), node_hours: caps.node_hours.value() ?? null, site: caps.site.value() ?? "", why: caps.why.value() ?? "" };
    };
    const check = () => {
      if (!Object.values(spaces).some((s) => s.use.checked)) return "Choose at least one parameter that is varied.";
      for (const s of Object.values(spaces)) if (s.use.checked && s.low && s.low.value() >= s.high.value()) { s.high.say("must be more than the lowest"); return "A range is empty."; }
      if (goal.limited.value() !== "none" && goal.limit.value() === undefined) { goal.limit.say("is needed"); return "A limit has no value."; }
      return "";
    };
    return filled(fields, [h("section", { class: "panel" }, h("h2", {}, "Goal"), h("div", { class: "fields" }, Object.values(goal).map((f) => f.el))), h("section", { class: "panel" }, h("h2", {}, "What is varied"), h("p", { class: "soft small" }, "Without a tick it has one value in all runs."), Object.values(spaces).map((s) => s.el)), h("section", { class: "panel" }, h("h2", {}, "How far, where, why"), h("div", { class: "fields" }, Object.values(caps).map((f) => f.el)))], asked, "campaigns", "campaigns/estimate", "Start the campaign", (said) => { location.hash = `#/campaign/${encodeURIComponent(said.id)}`; }, check);
  }

  function packagedForm(all) {
    if (!all.length) return empty("None is there", "No campaign comes with this installation.");
    const which = new Field("config", "Campaign", { enum: all.map((c) => c.name), default: all[0].name }, { hint: "" });
    const caps = { max_runs: new Field("max-runs", "Runs at most", { type: "integer", minimum: 1, maximum: 100000, default: "" }, { hint: "in place of its own (optional)" }), node_hours: new Field("node-hours", "Node-hours at most", { type: "number", exclusiveMinimum: 0, default: "" }, { hint: "in place of its own (optional)" }), site: site(), why: why() };
    const words = h("div", { id: "config-about", "aria-live": "polite" });
    const tell = () => {
      const c = all.find((one) => one.name === which.value());
      fill(words, h("p", {}, c.description || "It says nothing of what it finds out."), facts([["App", c.app], ["Runs at most", c.max_runs], ["Node-hours at most", c.node_hours]]));
    };
    which.input.addEventListener("change", tell);
    tell();
    const asked = () => ({ campaign: which.value(), max_runs: caps.max_runs.value() ?? null, node_hours: caps.node_hours.value() ?? null, site: caps.site.value() ?? "", why: caps.why.value() ?? "" });
    return filled({ campaign: which, ...caps }, [h("section", { class: "panel" }, which.el, words), h("section", { class: "panel" }, h("h2", {}, "How far, where, why"), h("div", { class: "fields" }, Object.values(caps).map((f) => f.el)))], asked, "configs", "configs/estimate", "Start the campaign", (said) => { location.hash = `#/campaign/${encodeURIComponent(said.id)}`; });
  }

  function filled(fields, parts, asked, path, estimatePath, words, done, more = () => "") {
    const said = h("div", { class: "said", role: "status" });
    const good = () => {
      const bad = Object.values(fields).filter((f) => !f.el.closest("[hidden]") && !f.check());
      const why = more();
      if (bad.length || why) {
        fill(said, h("p", { class: "error" }, why || `${bad.length === 1 ? "One field is" : `${bad.length} fields are`} not right yet.`));
        (bad[0] ?? Object.values(fields).find((f) => f.input.getAttribute("aria-invalid")))?.input.focus();
      }
      return !bad.length && !why;
    };
    const failed = (error) => {
      let first = null;
      for (const [key, text] of Object.entries(error.said?.fields ?? {})) {
        const field = fields[key] ?? fields[`params.${key}`] ?? Object.entries(fields).find(([k]) => k.endsWith(key))?.[1];
        if (field) { field.say(text); first ??= field; }
      }
      fill(said, h("p", { class: "error" }, error.message), error.said?.approval && h("p", {}, "It waits for a yes: ", h("a", { href: "#/approvals" }, "approvals"), "."));
      first?.input.focus();
    };
    async function submit(event) {
      event.preventDefault();
      if (!good()) return;
      try {
        const found = await post(path, asked());
        announce(found.found ? found.note || "The very same was known already; nothing was started anew." : "Started.");
        done(found);
      } catch (error) { failed(error); }
    }
    async function look() {
      if (!good()) return;
      try {
        const found = await post(estimatePath, asked());
        fill(said, h("div", { class: "panel" }, estimated(found)));
        if (found.refused && fields.walltime_s && fields.walltime_s.value() === undefined && found.node_hours_at_most === null) fields.walltime_s.say(`is needed: without it nothing bounds the node-hours (${found.refused.why})`);
      } catch (error) { failed(error); }
    }
    return h("form", { novalidate: true, onsubmit: submit }, parts, said, h("div", { class: "actions bottom" }, h("button", { type: "button", class: "plain", id: "estimate", onclick: look }, "Estimate"), h("button", { type: "submit", id: "submit" }, words)));
  }

  begin().catch((error) => fill(form, h("p", { class: "error" }, error.message)));
  return { title: "Start", el, update() {} };
}
