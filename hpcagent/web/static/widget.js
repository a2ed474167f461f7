// The page in a cell of a notebook (anywidget): the same modules in a frame of their own, whose requests are messages
// to the kernel. No address of a server, no port, no token.

// What a page asks with, in place of `fetch`: a Response whose text comes in parts.
function asking(model, mine, waiting) {
  const encoder = new TextEncoder();
  let n = 0;
  return (path, { method = "GET", body = "", signal } = {}) => new Promise((resolve, reject) => {
    const id = `${mine}-${n++}`;
    let stream;
    const stop = () => { if (waiting.delete(id)) model.send({ stop: id }); };
    const text = new ReadableStream({ start(to) { stream = to; }, cancel: stop });
    waiting.set(id, (message) => {
      if ("status" in message) resolve(new Response(text, { status: message.status }));
      if ("text" in message) stream.enqueue(encoder.encode(message.text));
      if (message.end) { waiting.delete(id); stream.close(); }
    });
    signal?.addEventListener("abort", () => {
      if (!waiting.has(id)) return;
      stop();
      const error = new DOMException("it was stopped", "AbortError");
      reject(error);
      stream.error(error);
    });
    model.send({ ask: id, method, path, body });
  });
}

// The page as one document: modules import each other by the addresses that they have here.
function page(files, mine, made) {
  const blob = (text, type) => { const url = URL.createObjectURL(new Blob([text], { type })); made.push(url); return url; };
  const icon = `data:image/svg+xml,${encodeURIComponent(files["icon.svg"])}`;
  const known = {};
  const module = (name) => (known[name] ??= blob(files[name].replaceAll('"icon.svg"', JSON.stringify(icon)).replace(/from "\.\/([\w.]+)"/g, (_, other) => `from "${module(other)}"`), "text/javascript"));
  return blob(`<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>hpcagent</title><style>${files["uPlot.css"]}\n${files["style.css"]}</style></head><body><div id="app" class="hpcagent"></div><script>globalThis.hpcagentAsk = parent.hpcagentPages.get("${mine}");</script><script type="module" src="${module("app.js")}"></script></body></html>`, "text/html");
}

function render({ model, el }) {
  const mine = crypto.randomUUID?.() ?? String(Math.random()).slice(2); // a notebook by plain http has no randomUUID
  const waiting = new Map(), made = [];
  const heard = (message) => waiting.get(message.to)?.(message);
  const frame = document.createElement("iframe");
  frame.title = "hpcagent: a workspace";
  const size = () => { frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`; };
  size();
  model.on("msg:custom", heard);
  model.on("change:height", size);
  (globalThis.hpcagentPages ??= new Map()).set(mine, asking(model, mine, waiting));
  waiting.set(mine, ({ files }) => {
    waiting.delete(mine);
    frame.src = page(files, mine, made);
    el.append(frame);
  });
  model.send({ files: mine });
  return () => {
    model.off("msg:custom", heard);
    model.off("change:height", size);
    for (const id of waiting.keys()) model.send({ stop: id });
    globalThis.hpcagentPages.delete(mine);
    frame.remove();
    made.forEach((url) => URL.revokeObjectURL(url));
  };
}

export default { render };
