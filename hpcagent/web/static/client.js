// Requests to the server, and the stream of what happens. All addresses are relative: a prefix before them is no matter.

const KEY = "hpcagent-token";
const SILENT_MS = 6000; // the server says something every 2 s

// In a notebook requests go through its kernel (widget.js), which needs no token.
const kernel = globalThis.hpcagentAsk;
const ask = kernel ?? ((...asked) => fetch(...asked));

export class Refused extends Error {
  constructor(status, said) {
    super(said.error ?? `the server answers ${status}`);
    this.status = status;
    this.said = said;
  }
}

export function takeToken() {
  if (kernel) return "kernel";
  const found = /[#&]token=([\w-]+)/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", location.pathname + location.search + "#/campaigns");
  }
  return sessionStorage.getItem(KEY) ?? "";
}

export const keepToken = (token) => sessionStorage.setItem(KEY, token);

const headers = (more) => ({ "x-hpcagent-token": sessionStorage.getItem(KEY) ?? "", ...more });

async function answer(asked) {
  let response;
  try {
    response = await asked;
  } catch {
    throw new Refused(0, { error: kernel ? "the kernel does not answer; does a cell run, or was it started anew?" : "the server does not answer; is `hpcagent web` still running?" });
  }
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, said);
  return said;
}

export const get = (path) => answer(ask(`api/${path}`, { headers: headers() }));
export const post = (path, body = {}) =>
  answer(ask(`api/${path}`, { method: "POST", headers: headers({ "content-type": "application/json" }), body: JSON.stringify(body) }));

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Hears what happens without end: `begin` reads everything and gives the number to go on from, `take` gets messages,
// `tell` is told whether the server is there.
export async function follow(begin, take, tell) {
  let after = "";
  let wait = 250;
  for (;;) {
    try {
      if (!after) after = await begin();
      await hear(after, (id, kind, data) => {
        wait = 250;
        if (kind === "reset") after = "";
        else {
          if (id) after = id;
          take(kind, data);
        }
      }, tell);
    } catch (error) {
      if (error.status === 401) throw error;
      tell(false);
    }
    await pause(after ? wait : 50);
    wait = Math.min(wait * 2, 4000);
  }
}

async function hear(after, take, tell) {
  const abort = new AbortController();
  let silent = setTimeout(() => abort.abort(), SILENT_MS);
  try {
    const response = await ask(`api/stream?after=${encodeURIComponent(after)}`, { headers: headers({ accept: "text/event-stream" }), signal: abort.signal });
    if (!response.ok) throw new Refused(response.status, {});
    tell(true);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(silent);
      silent = setTimeout(() => abort.abort(), SILENT_MS); // after a freeze the stream is silent without an error
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const field = (name) => part.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        if (field("data")) take(field("id"), field("event"), JSON.parse(field("data")));
      }
    }
  } finally {
    clearTimeout(silent);
    abort.abort();
  }
}
