// A conversation with the supervisor: what is asked, each call while it goes on, the answer, where its numbers are
// from, and what really ran. What a model says is text, never markup.

import { get, post } from "./client.js";
import { atMost, chip, cut, empty, facts, fill, h, num, span, unit, when } from "./dom.js";
import { showRun } from "./sheet.js";
import { has } from "./store.js";

const SAYS = { delegated: "asks", handed_back: "has handed back", retried: "is asked again", calling: "calls", called: "called", refused: "was refused", unknown: "has asked for" };

// `moved`: the address is that of a view which is there already.
export function chat(store, chosen, announce, moved) {
  const picker = h("select", { id: "thread", onchange: () => { location.hash = picker.value ? `#/chat/${encodeURIComponent(picker.value)}` : "#/chat"; } });
  const forget = h("button", { type: "button", id: "forget", class: "plain", onclick: remove }, "Forget it");
  const to = h("p", { class: "soft small" });
  const bar = h("div", { class: "filters" }, h("label", { class: "grow", for: "thread" }, h("span", {}, "Conversation"), picker), h("div", { class: "end" }, forget));
  const past = h("div", { class: "part-turns" }), now = h("div", { class: "part-now" });
  const goal = h("textarea", { id: "goal", rows: "3", maxlength: "20000", required: true, "aria-describedby": "goal-hint goal-error", onkeydown: (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); form.requestSubmit(); } } });
  const cap = h("input", { id: "goal-hours", type: "text", inputmode: "decimal", autocomplete: "off", "aria-describedby": "goal-hours-hint goal-error" });
  const wrong = h("p", { class: "error", id: "goal-error", role: "alert" });
  const send = h("button", { type: "submit", id: "ask" }, "Ask");
  const form = h("form", { class: "panel ask", onsubmit: ask }, h("div", { class: "field" }, h("label", { for: "goal" }, "Question or goal"), goal, h("span", { class: "soft small", id: "goal-hint" }, "It runs things here, behind the gate, in your name. Ctrl-Enter sends it."), wrong),
    h("div", { class: "inline" }, h("div", { class: "field" }, h("label", { for: "goal-hours" }, "Node-hours at most"), cap, h("span", { class: "soft small", id: "goal-hours-hint" }, "of all that it starts (optional)")), send));
  const page = h("div", { hidden: true }, bar, past, now, form, to);
  const el = h("div", { class: "narrow-page" }, page);
  let thread = chosen ?? "", standing = null, ended = false, seen = "", live = null;

  async function begin() {
    standing = await get("chat");
    if (ended) return;
    page.hidden = false;
    form.hidden = !standing.ready;
    fill(to, standing.ready ? `Questions, and what tools answer, go to ${standing.to}. Conversations are kept for ${num(standing.keep_days)} days.` : "");
    if (!standing.ready && !page.previousSibling) page.before(h("p", { class: "note warn", id: "not-ready", role: "status" }, standing.why));
    bar.hidden = !standing.ready && !standing.threads.length;
    pick();
    await read();
  }

  function pick() {
    const known = standing.threads.some((t) => t.thread === thread);
    fill(picker, h("option", { value: "" }, "A new one"), thread && !known && h("option", { value: thread }, "This one"), standing.threads.map((t) => h("option", { value: t.thread }, `${cut(t.goal.replace(/\s+/g, " "), 70)} (${t.turns} question${t.turns === 1 ? "" : "s"}, ${when(t.used_at)})`)));
    picker.value = thread;
    forget.hidden = !known;
  }

  async function read() {
    const found = thread ? (await get(`chat/thread/${encodeURIComponent(thread)}`)).turns : [];
    if (ended) return;
    const nothing = !found.length && !current();
    fill(past, nothing ? standing.ready && empty("Ask something", "“Which timestep keeps the drift of lj_argon below 50 meV?” Specialists call the workspace's tools; each call is shown, and each number has the run that it is from.") : found.map((t) => turn(t)));
  }

  const mine = () => store.chat.filter((t) => t.thread === thread);
  const current = () => mine().find((t) => t.state === "going") ?? mine().findLast((t) => t.state === "failed");

  // The turn that goes on. Its parts are made once: a yes that is about to be pressed stays where it is.
  function going() {
    const t = current();
    if (!t) { live = null; fill(now); return; }
    if (live?.id !== t.id) live = { id: t.id, steps: h("ol", { class: "steps", "aria-label": "What goes on", "aria-live": "polite", "aria-relevant": "additions text" }), question: h("div"), foot: h("div", { class: "actions" }) };
    const { steps, question, foot } = live;
    fill(steps, t.steps.map((s, i) => step(s, i)), t.state === "going" && !t.question && h("li", { class: "thinking" }, h("span", { class: "spin", "aria-hidden": "true" }), h("span", {}, t.stopping ? "Is being stopped …" : t.steps.some((s) => s.kind === "calling") ? "Waits for the call …" : "The model is asked …")));
    if (live.asked !== (t.question?.id ?? "")) {
      live.asked = t.question?.id ?? "";
      fill(question, t.question && consent(t, t.question));
      if (t.question) question.firstChild.querySelector("h2").focus({ preventScroll: true });
    }
    fill(foot, t.state === "going" && h("button", { type: "button", id: "stop-turn", class: "danger", disabled: t.stopping, onclick: () => act(`chat/turn/${live.id}/stop`, {}, "It is asked to stop; runs that it has started go on.") }, "Stop"));
    const parts = [said(t.goal), steps, question, t.state === "failed" && h("p", { class: "note bad", id: "turn-failed" }, `It came to no answer: ${t.error}`), foot];
    if (!now.firstChild || now.firstChild.dataset.id !== t.id) fill(now, h("article", { class: "turn", "data-id": t.id, "aria-label": "The question that is being answered" }));
    fill(now.firstChild, parts);
  }

  const said = (text) => h("div", { class: "asked" }, h("p", { class: "pre" }, text));

  function step(s, i) {
    const tool = s.tool && h("code", {}, s.tool);
    const mark = s.kind === "calling" ? h("span", { class: "spin", "aria-hidden": "true" }) : h("span", { class: `tick ${s.kind}`, "aria-hidden": "true" }, { called: "✓", refused: "✕", delegated: "→", handed_back: "←", retried: "↻", unknown: "?" }[s.kind] ?? "·");
    const words = s.kind === "delegated" ? ["The supervisor asks ", h("strong", {}, s.agent), s.text && [": ", h("span", { class: "soft" }, s.text)]]
      : [h("strong", {}, s.agent), ` ${SAYS[s.kind] ?? s.kind} `, s.kind === "refused" ? ["at ", tool] : tool, s.kind !== "handed_back" && s.text && s.text !== "{}" && h("span", { class: "soft arguments" }, ` ${s.text}`), s.kind === "unknown" ? h("strong", {}, " (outcome unknown)") : s.ended_at && h("span", { class: "soft" }, ` ${span(s.ended_at - s.at)}`)];
    return h("li", { class: `step ${s.kind}`, id: `step-${i}` }, mark, h("div", { class: "wrap" }, h("div", {}, words), s.runs?.length > 0 && h("div", { class: "small" }, s.runs.slice(0, 5).map((r, k) => [k ? ", " : "", run(r)]), s.runs.length > 5 && ` and ${s.runs.length - 5} more`), s.kind === "refused" && s.why && h("div", { class: "error small" }, s.why)));
  }

  function consent(t, q) {
    const a = q.asked ?? {};
    const decide = (yes) => act(`chat/turn/${t.id}/answer`, { question: q.id, yes }, yes ? "Yes: it goes on." : "No: the model is told.");
    return h("section", { class: "panel consent", "aria-labelledby": "consent-title" }, h("h2", { id: "consent-title", tabindex: "-1" }, q.approval ? `${q.agent} asks for your approval` : `${q.agent} asks you`), h("p", {}, q.words),
      facts([["App", a.app], ["Site", a.site], ["Nodes", a.nodes], ["Runs at most", a.runs], ["Node-hours at most", a.node_hours == null ? null : atMost(a.node_hours)], ["Node-hours expected", a.expected_node_hours == null ? null : num(a.expected_node_hours)], ["Cost at most", a.usd == null ? null : `${atMost(a.usd)} USD`]]),
      Object.keys(q.params).length > 0 && h("details", {}, h("summary", {}, "Parameters"), h("pre", { tabindex: "0", "aria-label": "Parameters" }, Object.entries(q.params).map(([n, v]) => `${n} = ${typeof v === "string" ? v : JSON.stringify(v)}`).join("\n"))),
      q.says && h("p", { class: "soft" }, `The model says it is for (not checked): ${q.says}`),
      q.approval && !store.may("approve") ? h("p", { class: "soft" }, `The role ${store.me.role} cannot decide it; whoever may finds it under Approvals.`) : h("div", { class: "actions" }, h("button", { type: "button", id: "consent-yes", onclick: () => decide(true) }, "Yes, run it"), h("button", { type: "button", id: "consent-no", class: "danger", onclick: () => decide(false) }, "No")));
  }

  // A run by its handle: a campaign has a page, a run a sheet.
  function run(id) {
    if (id.startsWith("c-")) return h("a", { href: `#/campaign/${encodeURIComponent(id)}` }, id);
    const row = () => store.rows.get(id);
    return h("button", { type: "button", class: "link", onclick: () => (row() ? showRun(row(), store) : announce(`${id} is not among the runs that you may see.`, true)) }, id);
  }

  function turn({ n, at, goal: asked, reply: r }) {
    const good = r.numbers.filter((x) => !x.flagged);
    const started = [...new Set(r.calls.flatMap((c) => c.started ?? []))];
    const once = (all, key) => [...new Map(all.map((x) => [key(x), x])).values()];
    return h("article", { class: "turn", "aria-label": `Question ${n}` }, said(asked),
      h("div", { class: "answer" }, r.state === "stopped" ? h("p", { class: "note warn" }, `Stopped: ${r.text}`) : h("p", { class: "pre" }, r.text),
        r.flagged.length > 0 && h("p", { class: "note bad flagged" }, h("strong", {}, "Not of any run, check these: "), [...new Set(r.flagged)].join(", ")),
        r.unknown_runs.length > 0 && h("p", { class: "note bad" }, h("strong", {}, "Not a run that was called here, check these: "), r.unknown_runs.join(", ")),
        good.length > 0 && h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Numbers of answer ${n}` }, h("table", { class: "values numbers" }, h("thead", {}, h("tr", {}, ["Number", "Is", "From"].map((x) => h("th", { scope: "col" }, x)))), h("tbody", {}, once(good, (x) => x.text + x.run + x.name).slice(0, 60).map((x) => h("tr", {}, h("th", { scope: "row" }, x.text), h("td", {}, x.source === "asked" ? "as it was asked" : `${x.name} = ${num(x.value, 6)}${unit(x.unit)}${x.others ? ` (it fits ${x.others} more)` : ""}`), h("td", {}, x.source === "run" ? run(x.run) : x.source === "tool" ? ["the tool ", h("code", {}, x.run)] : "the question"))))), once(good, (x) => x.text + x.run + x.name).length > 60 && h("p", { class: "soft small" }, `and ${once(good, (x) => x.text + x.run + x.name).length - 60} more`)),
        h("p", { class: "small" }, h("strong", {}, "What ran: "), started.length ? started.map((id, i) => [i ? ", " : "", run(id), r.states?.[id] ? ` ${r.states[id]}` : ""]) : "nothing"),
        h("details", { class: "ran" }, h("summary", {}, `What was called: ${r.calls.length || "nothing"}`), r.calls.length > 0 && h("ol", { class: "steps" }, r.calls.map((c, i) => step({ kind: c.refused ? "refused" : c.ended === false ? "unknown" : "called", agent: c.agent, tool: c.tool, text: JSON.stringify(c.arguments), why: c.refused, runs: c.runs, at: 0, ended_at: c.wall_s }, `${n}-${i}`)))),
        h("p", { class: "soft small" }, [when(at), r.model, `${r.requests} request${r.requests === 1 ? "" : "s"}`, `${num(r.input_tokens + r.output_tokens)} tokens`, `${num(r.node_hours)} node-hours`, span(r.wall_s)].filter(Boolean).join(" · "))));
  }

  async function act(where, asked, done) {
    try { await post(where, asked); announce(done); } catch (error) { announce(error.message, true); }
  }

  async function ask(event) {
    event.preventDefault();
    const text = cap.value.trim();
    const hours = text === "" ? null : Number(text);
    const bad = hours !== null && !(Number.isFinite(hours) && hours >= 0);
    fill(wrong, bad ? "Node-hours are a number, 0 or more." : "");
    if (bad) { cap.setAttribute("aria-invalid", "true"); cap.focus(); return; }
    cap.removeAttribute("aria-invalid");
    send.disabled = true;
    try {
      const found = await post("chat/ask", { goal: goal.value, thread, node_hours: hours });
      goal.value = "";
      if (thread !== found.thread) {
        thread = found.thread;
        moved(`/chat/${encodeURIComponent(thread)}`);
        pick();
      }
      await read();
      going();
      now.scrollIntoView({ block: "nearest" });
    } catch (error) {
      fill(wrong, Object.values(error.said?.fields ?? {}).join("; ") || error.message);
      goal.focus();
    } finally {
      send.disabled = false;
    }
  }

  async function remove() {
    if (!confirm("Remove this conversation? Its runs stay.")) return;
    try { await post(`chat/thread/${encodeURIComponent(thread)}/forget`); location.hash = "#/chat"; } catch (error) { announce(error.message, true); }
  }

  begin().catch((error) => fill(el, h("p", { class: "error" }, error.message)));
  return { title: "Chat", el, update(kinds) {
    if (!has(kinds, "chat") || ended) return;
    const key = mine().map((t) => `${t.id} ${t.state}`).join();
    going();
    if (standing && key !== seen) {
      seen = key;
      get("chat").then((found) => { standing = found; pick(); return read(); }).then(going).catch((error) => announce(error.message, true));
    }
    seen = key;
  }, end() { ended = true; } };
}
