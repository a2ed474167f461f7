// The page in a cell of a notebook (anywidget): the same modules in a frame of their own, whose requests are messages
// to the kernel. No address of a server, no port, no token.

const PATIENCE_MS = 300000; // a kernel that runs a cell answers after it

// Of scripts and pictures only what is made here; nothing is asked of any server.
const POLICY = "default-src 'none'; script-src blob:; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'";

// What a page asks with, in place of `fetch`: a Response whose text comes in parts, each with its number.
function asking(model, mine, waiting) {
  const encoder = new TextEncoder();
  let n = 0;
  return (path, { method = "GET", body = "", signal } = {}) => new Promise((resolve, reject) => {
    const id = `${mine}-${n++}`;
    let stream, next = 0;
    const fail = (words, name = "AbortError") => {
      const error = new DOMException(words, name);
      clearTimeout(late);
      if (waiting.delete(id)) model.send({ stop: id });
      reject(error);
      try { stream.error(error); } catch { /* it has ended */ }
    };
    const late = setTimeout(() => fail("the kernel does not answer"), PATIENCE_MS);
    if (signal?.aborted) { clearTimeout(late); reject(new DOMException("it was stopped", "AbortError")); return; }
    const text = new ReadableStream({ start(to) { stream = to; }, cancel: () => fail("it was stopped") });
    waiting.set(id, { fail, take(message) {
      if (message.n !== next++) { fail("a message was lost"); return; }
      clearTimeout(late);
      if ("status" in message) resolve(new Response(text, { status: message.status }));
      if (message.text) stream.enqueue(encoder.encode(message.text));
      if (message.end) { waiting.delete(id); try { stream.close(); } catch { /* it was stopped */ } }
    } });
    signal?.addEventListener("abort", () => { if (waiting.has(id)) fail("it was stopped"); });
    try { model.send({ ask: id, method, path, body }); } catch { fail("the kernel is gone"); }
  });
}

// The page as one document: modules import each other by the addresses that they have here.
function page(files, mine, made) {
  const blob = (text, type) => { const url = URL.createObjectURL(new Blob([text], { type })); made.push(url); return url; };
  const icon = JSON.stringify(`data:image/svg+xml,${encodeURIComponent(files["icon.svg"])}`);
  const known = {};
  const module = (name) => (known[name] ??= blob(files[name].replaceAll('"icon.svg"', icon).replace(/from "\.\/([\w.]+)"/g, (_, other) => `from "${module(other)}"`), "text/javascript"));
  const first = blob(`globalThis.hpcagentAsk = parent.hpcagentPages.get("${mine}");`, "text/javascript");
  return blob(`<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${POLICY}"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>hpcagent</title><style>${files["uPlot.css"]}\n${files["style.css"]}</style></head><body><div id="app" class="hpcagent"></div><script src="${first}"></script><script type="module" src="${module("app.js")}"></script></body></html>`, "text/html");
}

function render({ model, el }) {
  const mine = crypto.randomUUID?.() ?? String(Math.random()).slice(2); // a notebook by plain http has no randomUUID
  const waiting = new Map(), made = [];
  const heard = (message) => waiting.get(message.to)?.take(message);
  const frame = document.createElement("iframe");
  frame.title = "hpcagent: a workspace";
  const size = () => { frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`; };
  const leave = () => [...waiting.values()].forEach(({ fail }) => fail("the page is gone"));
  size();
  model.on("msg:custom", heard);
  model.on("change:height", size);
  addEventListener("pagehide", leave);
  (globalThis.hpcagentPages ??= new Map()).set(mine, asking(model, mine, waiting));
  waiting.set(mine, { fail: () => waiting.delete(mine), take({ files }) {
    waiting.delete(mine);
    frame.src = page(files, mine, made);
    el.append(frame);
  } });
  model.send({ files: mine });
  return () => {
    leave();
    model.off("msg:custom", heard);
    model.off("change:height", size);
    removeEventListener("pagehide", leave);
    globalThis.hpcagentPages.delete(mine);
    frame.remove();
    made.forEach((url) => URL.revokeObjectURL(url));
  };
}

export default { render };
