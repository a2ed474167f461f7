// The frame: the token, where one is, and the connection.

import { approvals } from "./approvals.js";
import { campaign, campaigns } from "./campaigns.js";
import { chat } from "./chat.js";
import { follow, get, keepToken, takeToken } from "./client.js";
import { costs } from "./costs.js";
import { fill, h } from "./dom.js";
import { runs } from "./runs.js";
import { closeSheet } from "./sheet.js";
import { sites } from "./sites.js";
import { start } from "./start.js";
import { Store } from "./store.js";
import { tool, tools } from "./tools.js";

const root = document.getElementById("app");
const store = new Store();

// A place for each view: another one is a line here.
const VIEWS = {
  campaigns: { title: "Campaigns", make: () => campaigns(store) },
  campaign: { make: (id) => campaign(store, id, announce), under: "campaigns" },
  runs: { title: "Runs", make: () => runs(store) },
  start: { title: "Start", make: (app) => start(store, app, announce) },
  approvals: { title: "Approvals", make: () => approvals(store, announce), badge: () => store.pending.length },
  chat: { title: "Chat", make: (thread) => chat(store, thread, announce, (to) => { path = to; history.replaceState(null, "", `#${to}`); }), badge: () => store.chat.filter((t) => t.question).length },
  tools: { title: "Tools", make: () => tools(store, announce), badge: () => (store.may("approve") ? store.tools.filter((t) => t.state === "pending").length : 0) },
  tool: { make: (name) => tool(store, name, announce), under: "tools" },
  costs: { title: "Costs", make: () => costs(store) },
  sites: { title: "Sites", make: () => sites(store) },
};

const said = h("div", { id: "said", role: "status", class: "toast", hidden: true });
let hide = 0;
function announce(text, bad = false) {
  clearTimeout(hide);
  said.className = `toast${bad ? " bad" : ""}`;
  said.hidden = false;
  said.textContent = text;
  hide = setTimeout(() => { said.hidden = true; said.textContent = ""; }, bad ? 12000 : 6000);
}

const nav = h("ul");
const connection = h("span", { role: "status", class: "connection" });
const who = h("span", { class: "soft" });
const trouble = h("div", { role: "alert", class: "trouble" });
const title = h("h1", { tabindex: "-1", id: "title" });
const place = h("div", { id: "place" });
let view = null, path = "";

function frame() {
  fill(root, h("a", { class: "skip", href: "#title", onclick: (e) => { e.preventDefault(); title.focus(); } }, "Skip to the content"),
    h("header", { class: "top" }, h("a", { class: "brand", href: "#/campaigns" }, h("img", { src: "icon.svg", alt: "", width: 26, height: 26 }), h("span", { id: "workspace" }, "hpcagent")), h("nav", { "aria-label": "Views" }, nav), h("div", { class: "who" }, who, connection)),
    h("main", { id: "main" }, trouble, title, place), said);
}

function navigation() {
  const name = path.split("/")[1];
  const at = VIEWS[name]?.under ?? name;
  fill(nav, Object.entries(VIEWS).filter(([, v]) => v.title).map(([key, v]) => {
    const n = v.badge?.() ?? 0;
    return h("li", {}, h("a", { href: `#/${key}`, id: `nav-${key}`, "aria-current": key === at ? "page" : undefined }, v.title, n > 0 && h("span", { class: "badge", "aria-label": `${n} waiting` }, n)));
  }));
}

function route() {
  const wanted = location.hash.startsWith("#/") ? location.hash.slice(1) : "/campaigns";
  if (wanted === path) return;
  const first = !path;
  path = wanted;
  closeSheet();
  view?.end?.();
  const [, name, ...rest] = path.split("/");
  const found = VIEWS[name] ?? VIEWS.campaigns;
  view = found.make(...rest.map(decodeURIComponent));
  title.textContent = view.title;
  document.title = `${view.title} · ${store.name ?? "hpcagent"}`;
  fill(place, view.el);
  view.update(new Set(["all"]));
  navigation();
  if (!first) {
    scrollTo(0, 0);
    title.focus({ preventScroll: true });
  }
}

function online(there) {
  if (store.online === there) return;
  store.online = there;
  fill(connection, h("span", { class: there ? "dot on" : "dot off", "aria-hidden": "true" }), there ? "Live" : "Connecting again …");
}

function ask(words) {
  fill(root, h("main", { class: "token" }, h("h1", {}, "hpcagent"), h("p", {}, words), h("form", { onsubmit: (event) => {
    event.preventDefault();
    const text = document.getElementById("token").value.trim();
    keepToken(/token=([\w-]+)/.exec(text)?.[1] ?? text);
    location.reload();
  } }, h("label", { for: "token" }, "URL or token that `hpcagent web` has printed"), h("input", { id: "token", type: "password", autocomplete: "off", required: true }), h("button", { type: "submit" }, "Open"))));
}

async function begin() {
  const found = await get("snapshot");
  const first = !store.me;
  store.reset(found);
  if (first) {
    document.getElementById("workspace").textContent = found.name || "hpcagent";
    fill(who, `${found.me.name} · ${found.me.role}`);
    route();
    addEventListener("hashchange", () => { if (takeToken()) route(); });
  }
  return found.version;
}

async function main() {
  if (!takeToken()) {
    ask("This page needs its token, which is in the URL that was printed when it was started.");
    return;
  }
  frame();
  store.listen((kinds) => {
    if (kinds.has("all") || kinds.has("approvals") || kinds.has("tools") || kinds.has("chat")) navigation();
    if (kinds.has("all") || kinds.has("trouble")) fill(trouble, store.trouble && `The workspace does not say what happens at this moment: ${store.trouble}`);
    view?.update(kinds);
  });
  try {
    await follow(begin, (kind, data) => store.take(kind, data), online);
  } catch (error) {
    ask(error.message);
  }
}

main();
