"""`submit_slurm` and `get_node_counters` on a real Slurm, by the MCP client."""

from __future__ import annotations

import anyio
import pytest
import tomli_w

import hpcagent as ha
from hpcagent.sites.ledger import read_ledger

pytest.importorskip("mcp")

from mcp import Client

from hpcagent.mcp.callers import Callers
from hpcagent.mcp.server import make_server

pytestmark = pytest.mark.slow

PATIENCE_S = 240
HOSTILE = "first\n#SBATCH --comment=hostile\n$(touch hostile)"
SITE = {
    "name": "here",
    "kind": "slurm",
    "address": "127.0.0.1",
    "poll_s": 0.5,
    "margin_s": 10.0,
    "nodes": {"n": {"cores": 1}},
    "queues": {"debug": {"node": "n"}},
    "block": {"queue": "debug", "walltime": "00:10:00"},
    "executors": {"workers": {}},
}


def test_a_run_goes_into_a_job_whose_script_has_nothing_of_the_client(cluster, tmp_path):
    root = tmp_path / "ws"
    workspace = ha.Workspace(root, create=True)
    (root / "here.toml").write_text(tomli_w.dumps(SITE))
    (root / "workspace.toml").write_text(
        'name = "ws"\ndefault_site = "here"\n[sites.here]\nprofile = "here.toml"\n'
    )

    async def body(client: Client) -> dict:
        spec = {"app": "synthetic", "site": "here", "params": {"x": 0.3}, "walltime_s": 60.0, "why": HOSTILE}
        begun = (await client.call_tool("submit_slurm", {"spec": spec})).structured_content
        with anyio.fail_after(PATIENCE_S):
            while True:
                asked = {"run_id": begun["run_id"]}
                if (await client.call_tool("get_status", asked)).structured_content["phase"] != "pending":
                    return (await client.call_tool("get_node_counters", asked)).structured_content
                await anyio.sleep(0.2)

    async def main() -> dict:
        callers = Callers(root)
        try:
            async with Client(make_server(callers)) as client:
                return await body(client)
        finally:
            callers.close()

    try:
        found = anyio.run(main)
        assert found["state"] == "completed" and found["wall_s"] > 0
        entries = read_ledger(root / "sites" / "here" / "jobs.jsonl")
        assert [job["job_id"] for job in found["jobs"]] == [entry.job_id for entry in entries]
        assert found["jobs"][0]["scheduler"] == "slurm" and found["jobs"][0]["nodes"] == 1
        texts = [path.read_bytes() for path in (root / "sites").rglob("*") if path.is_file()]
        scripts = [text for text in texts if b"#SBATCH" in text]
        assert scripts and not any(b"hostile" in text for text in scripts)
    finally:
        workspace.end(runs=True)
    assert not list(tmp_path.rglob("hostile"))
