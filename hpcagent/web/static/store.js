// What the page knows: a mirror of the server's, and who wants to hear of changes.

export class Store {
  constructor() {
    this.rows = new Map();
    this.columns = [];
    this.approvals = [];
    this.progress = {};
    this.costs = {};
    this.tools = [];
    this.agents = [];
    this.chat = [];
    this.news = [];
    this.trouble = "";
    this.online = null;
    this.version = 0;
    this.listeners = new Set();
    this.waiting = new Set();
  }

  reset(said) {
    this.columns = said.columns;
    this.rows = new Map();
    const lists = said.columns.map((name) => said.runs[name] ?? []);
    for (let i = 0; i < lists[0].length; i++) this.put(lists.map((list) => list[i]));
    for (const name of ["approvals", "progress", "costs", "tools", "agents", "chat", "news", "trouble"]) this[name] = said[name];
    this.name = said.name;
    this.me = said.me;
    this.sites = said.sites;
    this.rules = said.rules;
    this.defaultSite = said.default_site;
    this.changed("all");
  }

  put(values) {
    const row = {};
    this.columns.forEach((name, i) => { row[name] = values[i]; });
    this.rows.set(row.id, row);
  }

  take(kind, data) {
    if (kind === "runs") for (const values of data) this.put(values);
    else if (kind === "turn") this.chat = this.chat.some((t) => t.id === data.id) ? this.chat.map((t) => (t.id === data.id ? data : t)) : [...this.chat, data];
    else this[kind] = data;
    this.changed(kind === "turn" ? "chat" : kind);
  }

  get campaigns() {
    return [...this.rows.values()].filter((row) => row.kind === "campaign").sort((a, b) => b.asked_at - a.asked_at);
  }

  get pending() {
    return this.approvals.filter((one) => one.state === "pending");
  }

  may(right) {
    return this.me?.may.includes(right);
  }

  // Listeners are called once a frame, with all kinds that have changed.
  changed(kind) {
    this.version++;
    if (!this.waiting.size) setTimeout(() => this.tell(), 16);
    this.waiting.add(kind);
  }

  tell() {
    const kinds = this.waiting;
    this.waiting = new Set();
    for (const listener of [...this.listeners]) listener(kinds);
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

export const has = (kinds, ...names) => kinds.has("all") || names.some((name) => kinds.has(name));
