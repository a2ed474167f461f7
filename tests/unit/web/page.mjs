// Scenarios in one headless browser, each in a profile of its own: `node page.mjs MODULES CHROMIUM` reads lines
// `{"scenario": ..., "url": ..., ...}` and prints for each what was seen, or why it failed, as a line of JSON.

import fs from "node:fs";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, chromium] = process.argv.slice(2);
const { default: puppeteer } = await import(pathToFileURL(`${modules}/puppeteer-core/lib/esm/puppeteer/puppeteer-core.js`));
const axe = fs.readFileSync(`${modules}/axe-core/axe.min.js`, "utf8");

const PATIENCE_MS = 120_000; // a browser on a machine that is busy with other tests

let given = {}; // of the scenario
let wrong = []; // what no page may say or ask for
let asked = 0;

async function opened(browser, { width = 1366, height = 768, scheme = "light", hash = "" } = {}) {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("console", (m) => { if (["error", "warning"].includes(m.type()) && !given.errors?.some((one) => m.text().includes(one))) wrong.push(`console: ${m.text()}`); });
  page.on("request", (r) => { asked++; if (!r.url().startsWith(given.url.split("#")[0]) && !r.url().startsWith("data:")) wrong.push(`asked for ${r.url()}`); });
  page.on("dialog", (dialog) => (dialog.type() === "alert" ? wrong.push("a script of a text ran") && dialog.dismiss() : dialog.accept()));
  await page.goto(given.url);
  await page.waitForSelector("#place > div");
  if (hash) await go(page, hash);
  return page;
}

async function go(page, hash) {
  await page.evaluate((to) => { location.hash = to; }, hash);
  await page.waitForFunction((to) => location.hash === to, {}, hash);
}

async function violations(page) {
  const session = await page.createCDPSession();
  await session.send("Runtime.evaluate", { expression: axe }); // beside the page's policy, as a person's tool would be
  const found = await page.evaluate(async () => (await axe.run()).violations.map((v) => `${v.id}: ${v.nodes[0].html.slice(0, 160)}`));
  await session.detach();
  return found;
}

// For a person to look at, where HPCAGENT_TESTS_SHOTS is set.
async function shot(page, name, options = {}) {
  if (given.pictures) await page.screenshot({ path: `${given.shots}/${name}.png`, ...options });
}

const wide = (page) => page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
const words = (page, selector) => page.$eval(selector, (el) => el.textContent);
async function until(page, test, ...args) {
  try {
    return await page.waitForFunction(test, { timeout: PATIENCE_MS, polling: 50 }, ...args);
  } catch (error) {
    const seen = await page.evaluate(() => document.querySelector("main")?.innerText ?? document.body.innerText);
    throw new Error(`${error.message} (${JSON.stringify(args)}); the page: ${seen.slice(0, 1500)}`);
  }
}


const scenarios = {
  // Every view, at the widths and colours that are asked for: no finding of axe, nothing wider than the window.
  async views(browser) {
    const found = {};
    for (const [name, size] of Object.entries({ laptop: {}, phone: { width: 390, height: 844 }, dark: { scheme: "dark" } })) {
      const page = await opened(browser, size);
      for (const [view, ready] of Object.entries(given.views)) {
        await go(page, `#/${view}`);
        await page.waitForSelector(ready, { timeout: PATIENCE_MS });
        found[`${name} ${view}`] = { axe: await violations(page), wide: await wide(page), title: await words(page, "#title") };
        await shot(page, `${name}-${view.split("/")[0]}`, { fullPage: true });
      }
      await page.close();
    }
    return found;
  },

  // A run of a campaign: by a click into the table, by keys, and by a click into the plane.
  async run_of_a_campaign(browser) {
    const page = await opened(browser, { hash: `#/campaign/${given.campaign}` });
    await page.waitForSelector(".part-table .row");
    await page.click(".part-table .row:nth-child(2)");
    await page.waitForSelector("dialog.sheet .values");
    const found = { first: await words(page, "#sheet-title") };
    await until(page, () => /Outcome/.test(document.querySelector("dialog.sheet")?.textContent ?? ""));
    found.why = await words(page, "dialog.sheet");
    found.axe = await violations(page);
    await shot(page, "sheet");
    await page.keyboard.press("Escape");
    await until(page, () => !document.querySelector("dialog.sheet"));
    found.focus_back = await page.evaluate(() => document.activeElement.classList.contains("row"));
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.waitForSelector("dialog.sheet .values");
    found.second = await words(page, "#sheet-title");
    await page.keyboard.press("Escape");
    await until(page, () => !document.querySelector("dialog.sheet"));
    await page.focus("#runs-sort-m-value");
    await page.keyboard.press("Enter");
    found.sorted = await page.$$eval(".part-table [role=columnheader]", (all) => all.map((el) => el.getAttribute("aria-sort")));
    found.top = await words(page, ".part-table .row .number:nth-last-child(3)");
    const spot = await page.evaluate(() => {
      const over = document.querySelector(".plot .u-over");
      over.scrollIntoView({ block: "center" });
      const box = over.getBoundingClientRect();
      for (let y = 2; y < box.height; y += 4) for (let x = 2; x < box.width; x += 4) {
        over.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
        if (over.style.cursor === "pointer") return [box.left + x + 6, box.top + y + 3];
      }
      return null;
    });
    await page.mouse.click(...spot);
    await page.waitForSelector("dialog.sheet .values");
    found.third = await words(page, "#sheet-title");
    return found;
  },

  // A sweep has no objective: its runs and the metrics that it shows are drawn.
  async sweep(browser) {
    const page = await opened(browser, { hash: `#/campaign/${given.campaign}` });
    await until(page, (n) => document.querySelectorAll(".part-table .row").length === n, given.runs);
    await until(page, (n) => [...document.querySelectorAll(".plot")].some((el) => el.getAttribute("aria-label")?.includes(`of ${n} completed runs`)), given.runs);
    const plots = () => page.$$eval(".plot", (all) => all.map((el) => el.getAttribute("aria-label")));
    const found = { head: await page.$$eval(".part-table [role=columnheader]", (all) => all.map((el) => el.textContent)), rows: await page.$$eval(".part-table .row", (all) => all.map((el) => el.textContent)), tiles: await words(page, ".part-tiles"), question: await words(page, ".question"), headings: await page.$$eval(".two h2", (all) => all.map((el) => el.textContent)), plots: await plots(), slices: await page.$("#slices") !== null, axe: await violations(page) };
    await page.select("#plane-value", "value");
    found.other = await plots();
    await shot(page, "sweep", { fullPage: true });
    return found;
  },

  // Ten thousand runs: few rows are drawn, all are counted, filter, sort and keys reach each.
  async many(browser) {
    const began = Date.now();
    const page = await opened(browser, { hash: "#/runs" });
    await page.waitForSelector(".table .row");
    const found = { ms: Date.now() - began, asked };
    const table = () => page.$eval(".table", (el) => ({ count: el.getAttribute("aria-rowcount"), drawn: el.querySelectorAll(".row").length }));
    found.all = await table();
    await page.focus(".table .row[tabindex='0']");
    await page.keyboard.press("End");
    found.last = await page.evaluate(() => document.activeElement.getAttribute("aria-rowindex"));
    await page.keyboard.press("PageUp");
    await page.keyboard.press("Home");
    found.first = await page.evaluate(() => document.activeElement.getAttribute("aria-rowindex"));
    await page.type("#filter", given.word);
    found.filtered = await table();
    await shot(page, "many");
    found.axe = await violations(page);
    return found;
  },

  // A LAMMPS script that somebody has added: read, approved without a word of tests, and run from its form.
  async script(browser) {
    const page = await opened(browser, { hash: `#/tool/${given.name}` });
    await page.waitForSelector("#approve");
    const found = { shown: await words(page, "#place"), despite: await page.$("#despite") !== null, axe: await violations(page) };
    await shot(page, "script", { fullPage: true });
    await page.click("#approve");
    await until(page, () => /It runs/.test(document.querySelector("#place").textContent));
    await page.click("a.button");
    await page.waitForSelector("#f-T");
    const put = (text) => page.$eval("#f-T", (el, value) => { el.value = value; el.dispatchEvent(new Event("input", { bubbles: true })); }, text);
    await put("600");
    await until(page, () => /Must be at most 100/.test(document.querySelector("#place").textContent));
    await put("80");
    await page.click("#submit");
    await page.waitForSelector(".table .row");
    await until(page, () => /completed/.test(document.querySelector(".table .row").textContent));
    found.run = await words(page, ".table .row");
    return found;
  },

  // What a start offers, what a run's drawer has of its files, and what is said of the best point.
  async details(browser) {
    const page = await opened(browser, { hash: "#/start" });
    await page.waitForSelector("#app-choice");
    const found = { ids: await page.$$eval("[id='app']", (all) => all.length), label: await page.$eval("label[for=app-choice]", (el) => el.control?.tagName) };
    found.groups = await page.$$eval("#app-choice optgroup", (all) => all.map((g) => [g.label, [...g.children].map((o) => o.value)]));
    await go(page, `#/campaign/${given.campaign}`);
    await until(page, () => /by the models of|best of \d/.test(document.querySelectorAll(".part-tiles .tile")[1]?.textContent ?? "") && !/worked out/.test(document.querySelector(".part-tiles").textContent));
    found.best = await page.$$eval(".part-tiles .tile", (all) => all[1].textContent);
    found.numbers = await page.$$eval(".plot", (all) => all.map((el) => el.getAttribute("aria-label")).find((label) => label.includes("by their number")));
    found.rows = await page.$$eval(".part-table .row", (all) => all.map((el) => [Number(el.firstElementChild.textContent), /completed/.test(el.textContent)]));
    await page.$eval(".two", (el) => el.scrollIntoView());
    await shot(page, "convergence");
    await shot(page, "best");
    await page.click(`.part-table .row[data-id="${given.inner}"]`);
    await page.waitForSelector("dialog.sheet #files summary");
    await page.click("dialog.sheet #files summary");
    await page.waitForSelector("dialog.sheet #files li");
    found.inner = await page.$$eval("dialog.sheet #files code", (all) => all.map((el) => el.textContent));
    const button = (label) => `dialog.sheet #files button[aria-label="${label} work/${given.inner}/`;
    // Not where they are on the screen: what is shown of one file moves the next.
    for (const name of ["log.lammps", "cut.png", "raw.bin"]) await page.$eval(`${button("Show")}${name}"]`, (el) => el.click());
    await until(page, () => document.querySelector("dialog.sheet #files pre") && document.querySelector("dialog.sheet #files img")?.naturalWidth && /It is no text/.test(document.querySelector("dialog.sheet #files").textContent));
    found.log = await words(page, "dialog.sheet #files pre");
    found.picture = await page.$eval("dialog.sheet #files img", (el) => [el.naturalWidth, el.src.slice(0, 22)]);
    found.made = await page.$$eval("dialog.sheet #files :is(b, script)", (all) => all.length);
    found.inner_axe = await violations(page);
    const session = await page.createCDPSession();
    await session.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: given.shots, browserContextId: browser.id });
    await page.click(`${button("Download")}raw.bin"]`);
    for (let i = 0; i < 600 && !fs.existsSync(`${given.shots}/raw.bin`); i++) await new Promise((done) => setTimeout(done, 50));
    await session.detach();
    for (const [name, width] of [["laptop", 1366], ["phone", 390]]) {
      await page.setViewport({ width, height: 800 });
      await page.$eval("#files", (el) => el.scrollIntoView());
      await shot(page, `shown-${name}`);
      found[`sheet_wide_${name}`] = await page.$eval(".sheet-body", (el) => el.scrollWidth - el.clientWidth);
    }
    await page.setViewport({ width: 1366, height: 768 });
    await page.click(`${button("Hide")}log.lammps"]`);
    found.hidden = (await page.$("dialog.sheet #files pre")) === null;
    await page.$eval("#files", (el) => el.scrollIntoView());
    await shot(page, "files_of_campaign");
    await page.keyboard.press("Escape");
    await until(page, () => !document.querySelector("dialog.sheet"));
    await go(page, "#/runs");
    await page.waitForSelector(`.table .row[data-id="${given.run}"]`);
    await page.click(`.table .row[data-id="${given.run}"]`);
    await page.waitForSelector("dialog.sheet #files summary");
    await page.click("dialog.sheet #files summary");
    await page.waitForSelector("dialog.sheet #files li");
    found.files = await page.$$eval("dialog.sheet #files code", (all) => all.map((el) => el.textContent));
    found.values = await words(page, "dialog.sheet");
    found.axe = await violations(page);
    await page.$eval("#files", (el) => el.scrollIntoView());
    await shot(page, "files");
    await page.keyboard.press("Escape");
    await go(page, "#/sites");
    await page.waitForSelector(".card");
    found.sites = await page.$$eval(".card", (all) => all.map((el) => el.textContent));
    await shot(page, "sites");
    return found;
  },

  // Names, labels and logs are texts, whatever they say.
  async texts(browser) {
    const page = await opened(browser, { hash: "#/runs" });
    await page.waitForSelector(".table .row");
    await page.click(`.table .row[data-id="${given.run}"]`);
    await page.waitForSelector("dialog.sheet pre");
    const found = { title: await words(page, "#sheet-title"), log: await words(page, "dialog.sheet pre"), axe: await violations(page) };
    await page.keyboard.press("Escape");
    await go(page, "#/approvals");
    await page.waitForSelector("article");
    found.approval = await words(page, "article");
    found.made = await page.evaluate(() => document.querySelectorAll("#app img:not([src='icon.svg']), #app script, #app b").length);
    return found;
  },

  // A form: an error beside its field, then an estimate, then the run.
  async form(browser) {
    const page = await opened(browser, { hash: "#/start/synthetic" });
    await page.waitForSelector("#f-x");
    const put = async (id, text_) => { await page.$eval(`#${id}`, (el) => { el.value = ""; }); await page.type(`#${id}`, text_); };
    await put("f-x", "7");
    await page.click("#submit");
    const found = { error: await words(page, "#f-x-error"), invalid: await page.$eval("#f-x", (el) => el.getAttribute("aria-invalid")), focus: await page.evaluate(() => document.activeElement.id), axe: await violations(page) };
    await shot(page, "form");
    await put("f-x", "0.37");
    found.mended = await words(page, "#f-x-error");
    await page.click("#estimate");
    await page.waitForSelector(".estimate");
    found.estimate = await words(page, ".estimate");
    await page.click("#submit");
    await until(page, () => location.hash === "#/runs");
    await until(page, () => [...document.querySelectorAll(".table .row")].some((el) => /x = 0.37/.test(el.textContent) && /completed/.test(el.textContent)));
    await go(page, "#/start/synthetic");
    await page.waitForSelector("#f-x");
    await page.click("input[value=campaign]");
    await page.waitForSelector("#max-runs");
    await put("max-runs", "6");
    found.campaign_axe = await violations(page);
    await page.click("#submit");
    await until(page, () => location.hash.startsWith("#/campaign/"));
    await until(page, () => /6 of 6/.test(document.querySelector(".part-tiles")?.textContent ?? ""));
    return found;
  },

  // A question: its steps, a yes that is asked for, its answer with the run of each number; then it is forgotten.
  async chat(browser) {
    const page = await opened(browser, { hash: "#/chat" });
    await page.waitForSelector("#goal");
    await page.type("#goal", "How fast is argon?");
    await page.keyboard.down("Control");
    await page.keyboard.press("Enter");
    await page.keyboard.up("Control");
    await page.waitForSelector("#consent-yes", { timeout: PATIENCE_MS });
    const found = { consent: await words(page, ".consent"), focus: await page.evaluate(() => document.activeElement.id), axe: await violations(page) };
    await shot(page, "consent", { fullPage: true });
    await page.click("#consent-yes");
    await page.waitForSelector(".turn .answer .numbers", { timeout: PATIENCE_MS });
    found.answer = await words(page, ".turn .answer");
    found.flagged = await words(page, ".flagged");
    found.numbers = await words(page, ".numbers");
    found.made = await page.evaluate(() => document.querySelectorAll("#app img:not([src='icon.svg']), #app script, #app b").length);
    await page.click("details.ran summary");
    found.answer_axe = await violations(page);
    await shot(page, "answer", { fullPage: true });
    await page.click(".numbers button.link");
    await page.waitForSelector("dialog.sheet .values");
    found.sheet = await words(page, "#sheet-title");
    await page.keyboard.press("Escape");
    await page.click("#forget");
    await until(page, () => location.hash === "#/chat" && !document.querySelector(".turn") && document.querySelector("#thread")?.selectedOptions[0]?.textContent === "A new one");
    found.forgotten = await page.$$eval("#thread option", (all) => all.map((el) => el.textContent));
    return found;
  },

  // A tool: a text that is wrong, one that is right, its tests, a yes to the text that is shown, and an agent that has it.
  async tool(browser) {
    const page = await opened(browser, { hash: "#/tools" });
    await page.waitForSelector("#register summary");
    await page.click("#register summary");
    const put = (text_) => page.$eval("#tool-text", (el, value) => { el.value = value; }, text_);
    await put(given.broken);
    await page.click("#tool-register");
    await until(page, () => document.querySelector("#tool-error").textContent);
    const found = { error: await words(page, "#tool-error"), focus: await page.evaluate(() => document.activeElement.id) };
    await put(given.text);
    await page.click("#tool-register");
    await until(page, () => /tests passed/.test(document.querySelector("#place").textContent));
    found.shown = await words(page, "pre.code");
    found.axe = await violations(page);
    await page.type("#decide-note", "read");
    await page.click("#approve");
    await until(page, () => /It runs/.test(document.querySelector("#place").textContent));
    await shot(page, "tool", { fullPage: true });
    await go(page, "#/tools");
    await page.waitForSelector("#add-agent summary");
    await page.click("#add-agent summary");
    await page.type("#agent-name", "mechanic");
    await page.type("#agent-role", "You know bodies that move.");
    await page.click("#agent-add");
    await page.waitForSelector("#agent-mechanic-give");
    await page.select("#agent-mechanic-tool", "kinetic_energy");
    await page.click("#agent-mechanic-give");
    await page.waitForSelector("#agent-mechanic-drop-kinetic_energy");
    found.agents_axe = await violations(page);
    await shot(page, "agents", { fullPage: true });
    return found;
  },

  // Two pages: what one approves, the other sees; what somebody starts, both see.
  async live(browser) {
    const page = await opened(browser, { hash: "#/approvals" }), other = await opened(browser, { hash: "#/approvals" });
    await page.waitForSelector("article");
    await other.waitForSelector("article");
    await page.type("[id^=note-]", "go ahead");
    await page.keyboard.press("Tab");
    const found = { focus: await page.evaluate(() => document.activeElement.textContent) };
    await page.keyboard.press("Enter");
    for (const one of [page, other]) await until(one, () => /Nothing waits/.test(document.querySelector("#place").textContent) && /go ahead/.test(document.querySelector("#place").textContent));
    found.badge = await page.$(".badge");
    found.said = await words(page, "#said");
    return found;
  },

  // A campaign that goes on is stopped, then goes on.
  async stop_and_extend(browser) {
    const MORE = 30;
    const page = await opened(browser, { hash: `#/campaign/${given.campaign}` });
    await until(page, () => /[1-9]\d* of 400/.test(document.querySelector(".part-tiles")?.textContent ?? ""));
    const found = { moving: await page.$eval(".part-tiles [role=progressbar]", (el) => Number(el.getAttribute("aria-valuenow"))) };
    await shot(page, "going");
    await page.click("#stop");
    await page.waitForSelector("#extend-runs", { timeout: PATIENCE_MS });
    found.stopped = await words(page, ".campaign-head .chip");
    found.stop_gone = (await page.$("#stop")) === null;
    const done = async () => Number(/(\d+) of/.exec(await words(page, ".part-tiles"))[1]);
    found.in_all = await done() + MORE;
    await page.$eval("#extend-runs", (el, n) => { el.value = String(n); }, found.in_all);
    await page.click("#extend-estimate");
    await page.waitForSelector(".inline .estimate");
    await until(page, (n) => document.querySelector(".inline .estimate").textContent.includes(`(${n} in all)`), found.in_all);
    found.done = await done();
    found.price = await words(page, ".inline .estimate");
    found.price_axe = await violations(page);
    for (const [name, width] of [["laptop", 1366], ["phone", 390]]) {
      await page.setViewport({ width, height: 800 });
      await page.$eval("#extend-runs", (el) => el.form.scrollIntoView({ block: "center" }));
      await shot(page, `extend-${name}`);
      found[`wide_${name}`] = await wide(page);
    }
    await page.$eval("#extend-runs", (el) => el.dispatchEvent(new Event("input", { bubbles: true })));
    found.price_gone = (await page.$(".inline .estimate")) === null;
    await page.$eval("#extend-runs", (el) => el.form.requestSubmit());
    await until(page, (n) => document.querySelector(".campaign-head .chip").textContent === "completed" && new RegExp(`${n} of ${n}`).test(document.querySelector(".part-tiles").textContent), found.in_all);
    found.axe = await violations(page);
    await go(page, "#/campaigns");
    await until(page, () => [...document.querySelectorAll(".tile")].some((el) => el.children[0].textContent === "Node-hours" && el.children[1].textContent !== "0"));
    found.overview = await page.$$eval(".tile", (all) => Object.fromEntries(all.map((el) => [el.children[0].textContent, el.children[1].textContent])));
    return found;
  },

  // The server goes, and comes again on the same port.
  async away(browser) {
    const page = await opened(browser, { hash: "#/runs" });
    await until(page, () => /Live/.test(document.querySelector(".connection").textContent));
    console.log("READY");
    await until(page, () => /again/.test(document.querySelector(".connection").textContent));
    console.log("AWAY");
    await until(page, () => /Live/.test(document.querySelector(".connection").textContent));
    await until(page, (app) => [...document.querySelectorAll(".table .row")].some((el) => el.textContent.includes(app)), given.word);
    return { url: page.url() };
  },

  // In a cell of a notebook: the same page in a frame, whose requests are messages.
  async widget(browser) {
    const outer = await browser.newPage();
    await outer.setViewport({ width: 1000, height: 760 });
    outer.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
    outer.on("console", (m) => { if (["error", "warning"].includes(m.type())) wrong.push(`console: ${m.text()}`); });
    outer.on("request", (r) => { if (!r.url().startsWith(given.url.split("#")[0]) && !/^(data|blob):/.test(r.url())) wrong.push(`asked for ${r.url()}`); });
    await outer.goto(given.url.split("#")[0]);
    const handle = await outer.waitForSelector("#cell iframe", { timeout: PATIENCE_MS });
    const page = await handle.contentFrame();
    await page.waitForSelector("#place > div", { timeout: PATIENCE_MS });
    await page.click("#nav-runs");
    const rows = () => page.$$eval(".table .row", (all) => all.length);
    await until(page, () => document.querySelectorAll(".table .row").length > 0);
    const found = { title: await words(page, "#title"), shown: await rows(), live: await words(page, ".connection") };
    await page.evaluate(() => { location.hash = "#/start/synthetic"; });
    await page.waitForSelector("#f-x");
    await page.$eval("#f-x", (el) => { el.value = ""; });
    await page.type("#f-x", "0.7");
    await page.click("#submit");
    await until(page, () => location.hash === "#/runs");
    await until(page, () => [...document.querySelectorAll(".table .row")].some((el) => /x = 0.7/.test(el.textContent) && /completed/.test(el.textContent)));
    found.after = await rows();
    await page.evaluate(() => [...document.querySelectorAll(".table .row")].find((el) => /x = 0.7/.test(el.textContent)).click());
    await page.waitForSelector("dialog.sheet .values");
    await shot(outer, "widget");
    await outer.evaluate(() => globalThis.ends());
    found.gone = (await outer.$("#cell iframe")) === null;
    return found;
  },

  // Without a token it asks for one, and shows nothing else.
  async token(browser) {
    const page = await browser.newPage();
    await page.goto(given.url.split("#")[0]);
    await page.waitForSelector("#token");
    const found = { axe: await violations(page) };
    // The page loads anew: what is waited for before that may be lost with it.
    const open = () => Promise.all([page.waitForNavigation(), page.click("button")]);
    await page.type("#token", "x".repeat(43));
    await open();
    await until(page, () => /missing or wrong/.test(document.body.textContent));
    await page.type("#token", given.url);
    await open();
    await page.waitForSelector("#place > div");
    found.url = page.url();
    found.cookies = (await browser.cookies()).length;
    return found;
  },
};

const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"] });
for await (const line of readline.createInterface({ input: process.stdin })) {
  given = JSON.parse(line);
  [wrong, asked] = [[], 0];
  const profile = await browser.createBrowserContext();
  try {
    const found = await scenarios[given.scenario](profile);
    console.log(JSON.stringify({ ...found, wrong }));
  } catch (error) {
    console.log(JSON.stringify({ failed: error.stack, wrong }));
  } finally {
    await profile.close();
  }
}
await browser.close();
