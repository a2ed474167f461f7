// Files of a run: looked at in place, downloaded, and named for other runs. What is in them is a text or a picture.

import { get } from "./client.js";
import { bytes, fill, h, num } from "./dom.js";

const LARGEST_DOWNLOAD = 256 * 2 ** 20; // it is put together in the browser's memory
const LARGEST_PICTURE = 16 * 2 ** 20;

// The files of a run, in a place that is drawn when it is opened. What is shown of each is what another run takes as a
// file: artifact:RUN/PATH. A campaign's run has its files in a folder of the campaign.
export function kept(mine, run, execution) {
  const place = h("details", { id: "files", ontoggle: () => { if (place.open) list(mine, place, run, execution); } }, h("summary", {}, "Files"));
  return place;
}

async function list(mine, place, run, execution) {
  try {
    const of = execution === undefined ? `run/${encodeURIComponent(run)}` : `campaign/${encodeURIComponent(run)}/run/${encodeURIComponent(execution)}`;
    const found = await get(`${of}/files`);
    if (mine.ended) return;
    fill(place, h("summary", {}, `Files (${num(found.files.length + found.more)})`), h("p", { class: "soft small" }, execution !== undefined && !found.files.length ? "It has written none: its numbers are in the campaign's record." : `Each text names a file for a parameter of another run, once this ${execution === undefined ? "run" : "campaign"} has ended.`),
      h("ul", { class: "files" }, found.files.map((f) => entry(mine, run, f))),
      found.more > 0 && h("p", { class: "soft small" }, `and ${num(found.more)} more: hpcagent workspace files ${run}${execution === undefined ? "" : ` work/${execution}`}`));
  } catch (error) {
    fill(place, h("summary", {}, "Files"), h("p", { class: "error" }, error.message));
  }
}

function entry(mine, run, file) {
  const name = `artifact:${run}/${file.path}`, place = h("div", { "aria-live": "polite" });
  return h("li", {}, h("code", {}, name), h("div", { class: "small file-actions" }, h("span", { class: "soft" }, bytes(file.bytes)), file.bytes > 0 && view(run, file, place), file.bytes > LARGEST_DOWNLOAD ? h("span", { class: "soft" }, `too large for a page: hpcagent workspace fetch ${run} ${file.path}`) : download(mine, run, file, place), copy(name)), place);
}

const asked = (run, what, path) => `run/${encodeURIComponent(run)}/${what}?path=${encodeURIComponent(path)}`;

// What a button says, and to whom, so that those who hear it know which file it is of.
function say(button, words, path) {
  button.textContent = words;
  button.setAttribute("aria-label", `${words} ${path}`);
}

// All pieces of a file, one after the other; `tell` hears how many bytes there are.
async function whole(run, path, most, tell, ended = () => false) {
  const parts = [];
  for (let offset = 0; offset !== null;) {
    const piece = await get(`${asked(run, "file", path)}&offset=${offset}`);
    if (ended()) return null;
    parts.push(Uint8Array.from(atob(piece.data), (c) => c.charCodeAt(0)));
    offset = piece.next;
    if ((offset ?? 0) > most) throw new Error(`It has grown beyond ${bytes(most)}.`);
    tell(offset ?? piece.bytes, piece.bytes);
  }
  return parts;
}

function download(mine, run, file, place) {
  const button = h("button", { type: "button", class: "link", "aria-label": `Download ${file.path}`, onclick: async () => {
    button.disabled = true;
    try {
      const parts = await whole(run, file.path, LARGEST_DOWNLOAD, (n, of) => { if (n < of) say(button, `${bytes(n)} of ${bytes(of)}`, file.path); }, () => mine.ended);
      if (parts) save(parts, file.path.split("/").pop());
    } catch (error) {
      fill(place, h("p", { class: "error" }, error.message));
    }
    say(button, "Download", file.path);
    button.disabled = false;
  } }, "Download");
  return button;
}

// Saved as a file of bytes, whatever is in it: no browser opens it as a page.
function save(parts, name) {
  const url = URL.createObjectURL(new Blob(parts, { type: "application/octet-stream" }));
  const link = h("a", { href: url, download: name, hidden: true });
  document.querySelector("#app").append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

function view(run, file, place) {
  const show = async () => (/\.png$/i.test(file.path) ? picture(run, file) : text(run, file));
  const button = h("button", { type: "button", class: "link", "aria-expanded": "false", "aria-label": `Show ${file.path}`, onclick: async () => {
    if (button.getAttribute("aria-expanded") === "true") {
      button.setAttribute("aria-expanded", "false");
      say(button, "Show", file.path);
      fill(place);
      return;
    }
    button.setAttribute("aria-expanded", "true");
    say(button, "Hide", file.path);
    let shown;
    try {
      shown = await show();
    } catch (error) {
      shown = h("p", { class: "error" }, error.message);
    }
    if (button.getAttribute("aria-expanded") === "true") fill(place, shown);
  } }, "Show");
  return button;
}

async function text(run, file) {
  const found = await get(asked(run, "text", file.path));
  if (found.text === null) return h("p", { class: "soft small" }, "It is no text.");
  return [h("pre", { tabindex: "0", "aria-label": file.path }, found.text), found.more > 0 && h("p", { class: "soft small" }, `The first ${bytes(found.bytes - found.more)} of ${bytes(found.bytes)}; the rest is in the download.`)];
}

async function picture(run, file) {
  if (file.bytes > LARGEST_PICTURE) return h("p", { class: "soft small" }, "It is too large to be shown; download it.");
  const parts = await whole(run, file.path, LARGEST_PICTURE, () => {});
  const src = await new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(new Blob(parts, { type: "image/png" }));
  });
  const place = h("div", {}, h("img", { src, alt: `Picture: ${file.path}`, onerror: () => fill(place, h("p", { class: "soft small" }, "It is no picture.")) }));
  return place;
}

function copy(name) {
  const button = h("button", { type: "button", class: "link", "aria-label": `Copy ${name}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(name);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select the text and copy it: the browser does not let the page";
    }
  } }, "Copy");
  return button;
}
