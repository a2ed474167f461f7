// Tools of the workspace's own: registered as a text, tried, decided on by a person; and the agents that have them.

import { get, post } from "./client.js";
import { chip, empty, facts, fill, h, span, when } from "./dom.js";
import { has } from "./store.js";

const SAMPLE = `def kinetic_energy(mass: float, speed: float) -> float:
    """Kinetic energy of a body.

    Args:
        mass: In kg, 0 to 1000.
        speed: In m/s, 0 to 100.

    Returns:
        In J.
    """
    return 0.5 * mass * speed**2


def test_kinetic_energy():
    assert kinetic_energy(2.0, 3.0) == 9.0
`;
const TESTS = { waiting: "tests are run", passed: "tests passed", failed: "tests failed", none: "no tests", "not run": "tests could not run" };
const path = (name) => encodeURIComponent(name);
const isScript = (t) => t.kind === "lammps"; // an app that was added: it has no tests, a person reads it

// A form's one place for a refusal: beside what was wrong, read out, the focus there.
function refusal(id, input) {
  const el = h("p", { class: "error", id, role: "alert" });
  input.setAttribute("aria-describedby", `${input.getAttribute("aria-describedby") ?? ""} ${id}`.trim());
  return { el, say(error) {
    const fields = Object.entries(error?.said?.fields ?? {}).map(([name, why]) => `${name}: ${why}`);
    fill(el, error ? (fields.length ? fields.join("; ") : error.message) : "");
    if (!error) { input.removeAttribute("aria-invalid"); return; }
    input.setAttribute("aria-invalid", "true");
    input.focus();
  } };
}

export function tools(store, announce) {
  const list = h("div", { class: "part-tools" }), people = h("div", { class: "part-agents" });
  const el = h("div", { class: "narrow-page" }, list, registration(announce, store), h("h2", { class: "apart" }, "Agents"), people);
  const made = h("div"), cards = new Map(), keys = new Map();
  let apps = [];
  get("apps").then((found) => { apps = found.apps.map((a) => a.name); keys.clear(); update(new Set(["agents"])); }).catch(() => {});

  function names() {
    return [...store.tools.map((t) => t.name), ...apps.filter((a) => !store.tools.some((t) => t.name === a))];
  }

  function update(kinds) {
    if (has(kinds, "tools")) {
      fill(list, store.tools.length ? h("div", { class: "cards" }, store.tools.map(card)) : empty("No tool of one's own yet", "A Python function becomes a tool: its text is checked and tried in a sandbox, and a person approves it. A LAMMPS script is added from the shell: hpcagent workspace add-app."));
    }
    if (has(kinds, "agents", "tools")) agents();
  }

  function agents() {
    if (!made.firstChild && store.may("write")) fill(made, addition());
    // A card stays as it is while somebody chooses in it.
    const said = store.agents.map((a) => {
      const key = JSON.stringify([a, names()]);
      if (keys.get(a.name) !== key) { keys.set(a.name, key); cards.set(a.name, agent(a)); }
      return cards.get(a.name);
    });
    fill(people, said.length ? said : h("p", { class: "soft" }, "The workspace has none of its own; the supervisor's own specialists are always there."), made);
  }

  function agent(a) {
    const id = `agent-${a.name}`;
    const act = async (where, asked, done) => {
      try { await post(`agent/${path(a.name)}/${where}`, asked); announce(done); why.say(null); } catch (error) { why.say(error); }
    };
    const left = names().filter((n) => !a.tools.includes(n));
    const choose = h("select", { id: `${id}-tool` }, left.map((n) => h("option", { value: n }, n)));
    const why = refusal(`${id}-error`, choose);
    const own = store.may("write");
    return h("article", { class: "panel agent", id, "aria-label": `Agent ${a.name}` }, h("h3", {}, a.name), h("p", { class: "wrap" }, a.role),
      a.problem && h("p", { class: "note bad" }, a.problem), a.warnings?.map((w) => h("p", { class: "note warn" }, w)),
      a.tools.length ? h("ul", { class: "tags" }, a.tools.map((t) => h("li", {}, store.tools.some((x) => x.name === t) ? h("a", { href: `#/tool/${path(t)}` }, t) : h("span", {}, t),
        own && h("button", { type: "button", class: "tag-button", id: `${id}-drop-${t}`, "aria-label": `Take ${t} from ${a.name}`, onclick: () => act("tools", { tool: t, take: true }, `${a.name} has ${t} no more.`) }, "✕")))) : h("p", { class: "soft" }, "It has no tool yet, so it can do nothing."),
      own && h("div", { class: "inline" }, h("label", { for: `${id}-tool` }, h("span", {}, "One more tool"), choose), h("button", { type: "button", class: "plain", id: `${id}-give`, onclick: () => choose.value && act("tools", { tool: choose.value }, `${a.name} has ${choose.value}.`) }, "Assign"),
        h("button", { type: "button", class: "danger", id: `${id}-remove`, onclick: () => confirm(`Remove the agent ${a.name}? Its tools stay.`) && act("remove", {}, `${a.name} was removed.`) }, "Remove")), why.el);
  }

  function addition() {
    const name = h("input", { id: "agent-name", type: "text", required: true, maxlength: "80", autocomplete: "off", spellcheck: "false" });
    const role = h("textarea", { id: "agent-role", rows: "3", required: true, maxlength: "20000", "aria-describedby": "agent-role-hint" });
    const why = refusal("agent-error", role);
    return h("details", { class: "panel", id: "add-agent" }, h("summary", {}, "Add an agent"), h("form", { onsubmit: async (event) => {
      event.preventDefault();
      try {
        await post("agents", { name: name.value.trim(), role: role.value });
        announce(`${name.value.trim()} was made; assign tools to it.`);
        why.say(null);
        event.target.reset();
      } catch (error) { why.say(error); }
    } }, h("div", { class: "field" }, h("label", { for: "agent-name" }, "Name"), name), h("div", { class: "field" }, h("label", { for: "agent-role" }, "Role"), role, h("span", { class: "soft small", id: "agent-role-hint" }, "What it is and does, as the model is told it."), why.el), h("div", { class: "actions" }, h("button", { type: "submit", id: "agent-add" }, "Add"))));
  }
  return { title: "Tools", el, update };
}

const card = (t) => h("a", { class: "card tool", id: `tool-${t.name}`, href: `#/tool/${path(t.name)}` }, h("div", { class: "card-head" }, h("strong", {}, t.name), chip(t.state)), h("span", {}, t.description || t.problem || "Its text says nothing of what it does."),
  h("span", { class: "soft small" }, [`version ${t.version}`, isScript(t) ? t.origin : TESTS[t.tests], t.errors.length && `${t.errors.length} error${t.errors.length > 1 ? "s" : ""}`, t.warnings.length && `${t.warnings.length} warning${t.warnings.length > 1 ? "s" : ""}`, `by ${t.asked_by}`].filter(Boolean).join(" · ")),
  t.agents.length > 0 && h("span", { class: "soft small" }, `of ${t.agents.join(", ")}`));

function registration(announce, store) {
  const box = h("div");
  if (!store.may("write")) return box;
  const text = h("textarea", { id: "tool-text", class: "code", rows: "16", spellcheck: "false", autocomplete: "off", autocapitalize: "off", required: true, placeholder: SAMPLE, "aria-describedby": "tool-text-hint" });
  const what = h("input", { id: "tool-why", type: "text", maxlength: "2000", autocomplete: "off" });
  const tier = h("select", { id: "tool-sandbox" }, h("option", { value: "bubblewrap" }, "bubblewrap: no network, no files of yours"), h("option", { value: "limits" }, "limits: it can read your files and use the network"));
  const why = refusal("tool-error", text);
  return fill(box, h("details", { class: "panel", id: "register" }, h("summary", {}, "Register a tool"), h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      const found = await post("tools", { text: text.value, why: what.value, sandbox: tier.value });
      why.say(null);
      announce(`Registered: ${found.tools.map((t) => t.name).join(", ")}. It is tried now, and waits for a person.`);
      location.hash = `#/tool/${path(found.tools[0].name)}`;
    } catch (error) { why.say(error); }
  } }, h("div", { class: "field" }, h("label", { for: "tool-text" }, "Python"), text, h("span", { class: "soft small", id: "tool-text-hint" }, "One function or several, with annotations, a docstring that has units, and tests. Nothing of it runs outside of a sandbox. Tab leaves the field."), why.el),
  h("div", { class: "fields" }, h("div", { class: "field" }, h("label", { for: "tool-why" }, "What it is for"), what), h("div", { class: "field" }, h("label", { for: "tool-sandbox" }, "Sandbox"), tier)),
  h("div", { class: "actions" }, h("button", { type: "submit", id: "tool-register" }, "Register"), h("button", { type: "button", class: "plain", onclick: () => { text.value ||= SAMPLE; text.focus(); } }, "Begin with an example")))));
}

export function tool(store, name, announce) {
  const el = h("div", { class: "narrow-page" }, h("p", { class: "soft" }, "Reading …"));
  const note = h("input", { id: "decide-note", type: "text", maxlength: "2000", autocomplete: "off" });
  const despite = h("input", { id: "despite", type: "checkbox" });
  const why = refusal("decide-error", note);
  const doubt = h("span"), all_the_same = h("label", { class: "check" }, despite, doubt);
  const noteField = h("div", { class: "field" }, h("label", { for: "decide-note" }, "Note (optional)"), note);
  const panel = h("section", { class: "panel decide" });
  let found = null, seen = "", removed = false;

  async function read() {
    try {
      found = await get(`tool/${path(name)}`);
      draw();
    } catch (error) {
      if (!removed) fill(el, h("p", { class: "error" }, error.message), back());
    }
  }

  const back = () => h("p", {}, h("a", { href: "#/tools" }, "← All tools"));

  async function act(where, asked, done) {
    try {
      await post(`tool/${path(name)}/${where}`, asked);
      why.say(null);
      announce(done);
      if (where === "remove") { removed = true; location.hash = "#/tools"; } else await read();
    } catch (error) { why.say(error); }
  }

  function draw() {
    const t = found, tests = t.tests;
    // Of the text that is shown, whichever that is when the button is pressed.
    const decide = (approve) => act("decide", { approve, sha256: found.sha256, note: note.value, despite_tests: despite.checked }, approve ? `${name} is approved.` : `${name} is rejected.`);
    const ready = isScript(t) || tests.state === "passed", mine = store.may("approve");
    const button = (id, words, kind, go) => h("button", { type: "button", id, class: kind, onclick: go }, words);
    const marks = (kind, title, all) => all.length > 0 && h("section", { class: `note ${kind}` }, h("h3", {}, title), h("ul", {}, all.map((one) => h("li", {}, one))));
    fill(el, back(), h("div", { class: "row-between" }, h("p", { class: "question" }, t.description), chip(t.state)), t.problem && h("p", { class: "note bad" }, t.problem),
      marks("bad", "Errors: it cannot be approved", t.errors), marks("warn", "To be looked at before it is approved", t.warnings),
      h("section", { class: "panel" }, h("h2", {}, "Its text"), h("pre", { class: "code", tabindex: "0", "aria-label": `Text of ${name}` }, t.text), h("p", { class: "soft small wrap" }, "SHA-256 ", h("code", {}, t.sha256))),
      Object.keys(t.parameters ?? {}).length > 0 && h("section", { class: "panel" }, h("h2", {}, "What a run may ask for"), facts(Object.entries(t.parameters ?? {})), Object.keys(t.files ?? {}).length > 0 && h("p", { class: "soft small wrap" }, `Files that are kept with it: ${Object.keys(t.files).join(", ")}`)),
      !isScript(t) && h("section", { class: "panel" }, h("h2", { class: "row-between" }, h("span", {}, "Its tests"), chip(tests.state, TESTS[tests.state])), tests.why && h("p", {}, tests.why),
        tests.cases.length > 0 && h("ul", { class: "plain-list" }, tests.cases.map((c) => h("li", {}, chip(c.passed ? "passed" : "failed"), h("span", { class: "wrap" }, h("code", {}, c.name), c.said && h("span", { class: "soft" }, ` ${c.said}`))))),
        tests.tier && h("p", { class: "soft small" }, `${tests.kind === "generated" ? "Calls made from its contract" : "Tests of its text"}, in the sandbox ${tests.tier}, ${span(tests.wall_s)}`)),
      h("section", { class: "panel" }, h("h2", {}, "Where it is from"), facts([["Version", t.version], ["Registered by", `${t.asked_by}, ${when(t.at)}`], ["From", t.origin], ["What it is for", t.why], ["Sandbox", t.sandbox], ["Limits", t.limit], ["Settings", Object.keys(t.settings ?? {}).length > 0 ? Object.entries(t.settings).map(([n, v]) => `${n} = ${JSON.stringify(v)}`).join("; ") : null], ["Decided", t.decided_by ? `${t.decided_by}, ${when(t.decided_at)}${t.note ? `: ${t.note}` : ""}` : null], ["Agents", t.agents.join(", ")]])),
      (mine || store.may("write")) && panel);
    doubt.textContent = `Approve it although its ${tests.state === "none" ? "tests are not there" : TESTS[tests.state]}`;
    fill(panel, h("h2", {}, t.state === "approved" ? "It runs" : "Decide"), mine && noteField, why.el, mine && !ready && t.state !== "approved" && tests.state !== "waiting" && all_the_same,
      h("div", { class: "actions" }, mine && t.state !== "approved" && !t.errors.length && button("approve", "Approve this text", "", () => decide(true)), mine && t.state !== "rejected" && button("reject", "Reject", "danger", () => decide(false)),
        t.state === "approved" ? h("a", { class: "button plain", href: `#/start/${path(name)}` }, "Run it") : store.may("write") && button("remove", "Remove", "danger", () => confirm(`Remove ${name}? Versions that were approved stay.`) && act("remove", {}, `${name} was removed.`))));
  }

  return { title: name, el, update(kinds) {
    if (!has(kinds, "tools", "agents")) return;
    const now = JSON.stringify(store.tools.find((t) => t.name === name) ?? null);
    if (now !== seen) { seen = now; read(); }
  } };
}
