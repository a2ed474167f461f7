"""What may not reach a job script or an input, and node counters, through the MCP server."""

from __future__ import annotations

import anyio
import pytest

CLUSTER = """
name = "cluster"
kind = "slurm"
[nodes.n]
cores = 4
[queues.debug]
node = "n"
[block]
queue = "debug"
"""
SPEC = {"app": "synthetic", "site": "cluster", "params": {"x": 0.3}}
LINES = "x\n#SBATCH --uid=0\nrm -rf /"


@pytest.fixture(autouse=True)
def _cluster(workspace):
    root = workspace.folder.root
    (root / "cluster.toml").write_text(CLUSTER)
    with (root / "workspace.toml").open("a") as file:
        file.write('\n[sites.threads]\n\n[sites.cluster]\nprofile = "cluster.toml"\n')


def _refused(drive, tool, arguments):
    async def body(client):
        return await client.call_tool(tool, arguments)

    result = drive(body)
    assert result.is_error, result.structured_content
    return result.structured_content["refused"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"site": "threads"}, "site"),
        ({"site": "no_such"}, "site"),
        ({"site": ""}, "spec.site"),
        ({"site": "cluster.toml"}, "spec.site"),
        ({"site": "./cluster"}, "spec.site"),
        ({"site": "/tmp/evil.toml"}, "spec.site"),
        ({"site": LINES}, "spec.site"),
        ({"site": "cluster\x00"}, "spec.site"),
        ({"app": LINES}, "app"),
        ({"app": "../evil"}, "app"),
        ({"app": "/tmp/evil.py"}, "app"),
        ({"app": "os:system"}, "app"),
        ({"app": "synthetic;id"}, "app"),
        ({"nodes": 0}, "spec.nodes"),
        ({"nodes": 1.5}, "spec.nodes"),
        ({"nodes": "1\n#SBATCH -A x"}, "spec.nodes"),
        ({"ranks_per_node": -1}, "spec.ranks_per_node"),
        ({"walltime_s": 0}, "spec.walltime_s"),
        ({"walltime_s": "01:00:00\n#SBATCH"}, "spec.walltime_s"),
        ({"seed": -1}, "spec.seed"),
        ({"account": "root"}, "spec.account"),
        ({"partition": LINES}, "spec.partition"),
        ({"directives": ["--uid=0"]}, "spec.directives"),
        ({"settings": {"command": "sh"}}, "spec.settings"),
        ({"params": {"x": "0.3\nrun 1"}}, "x"),
        ({"params": {LINES: 1}}, ""),
        ({"why": "w" * 2001}, "spec.why"),
    ],
)
def test_nothing_but_checked_values_gets_in(drive, workspace, changed, field):
    refused = _refused(drive, "submit_slurm", {"spec": SPEC | changed})
    assert refused.get("field", "") == field
    assert workspace.list()["runs"] == []
    assert not list(workspace.folder.sites.glob("*/*"))


@pytest.mark.parametrize(
    ("app", "params"),
    [
        ("lj_argon", {"timestep": "0.001\nshell rm -rf /"}),
        ("lj_argon", {"accelerator": "off\nshell id"}),
        ("lj_argon", {"accelerator": '" shell id "'}),
        ("lj_argon", {"steps": 1e30}),
        ("lj_argon", {"steps": float("nan")}),
        ("lj_argon", {"skin": [1, 2]}),
        ("lj_argon", {"skin": True}),
        ("dft_relax", {"xc": "PBE\n/\nprefix='x'"}),
        ("smiles_to_xyz", {"smiles": "C\nO"}),
        ("simulate_chemical_reaction", {"reactants": "H2\x1b[31m"}),
    ],
)
def test_no_parameter_is_a_line_of_an_input(drive, workspace, app, params):
    assert _refused(drive, "run_job", {"kind": app, "params": params, "site": "threads"})
    assert workspace.list()["runs"] == []


def test_counters_of_a_run_that_has_ended(drive):
    async def body(client):
        begun = await client.call_tool("run_job", {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 2.0}})
        run = begun.structured_content["run_id"]
        with anyio.fail_after(60):
            while (await client.call_tool("get_status", {"run_id": run})).structured_content["phase"] == "pending":
                await anyio.sleep(0.02)
        return (await client.call_tool("get_node_counters", {"run_id": run})).structured_content

    found = drive(body)
    assert found["nodes"] == found["ranks"] == 1 and found["wall_s"] > 0 and found["node"]
    assert found["max_rss_bytes"] is None and found["unknown"]["max_rss_bytes"]
    assert (found["cpu_s"] is None) == ("cpu_s" in found["unknown"])
    assert all(found[name] is None for name in found["unknown"])


@pytest.mark.slow
def test_counters_of_a_lammps_run_while_it_goes_and_of_one_that_is_not_there(drive, workspace, follow):
    async def body(client):
        asked = {"kind": "lj_argon", "params": {"steps": 100_000}, "site": "threads"}
        run = (await client.call_tool("run_job", asked)).structured_content["run_id"]
        found = await follow.until(
            client, "get_node_counters", {"run_id": run}, lambda c: c["cpu_s"] and c["max_rss_bytes"] > 1 << 20
        )
        status = (await client.call_tool("get_status", {"run_id": run})).structured_content
        await client.call_tool("cancel", {"run_id": run})
        return found, status, await client.call_tool("get_node_counters", {"run_id": "r-none"})

    found, status, none = drive(body)
    assert found["state"] == "running" and found["processes"] >= 1
    assert "kernel" in found["source"]
    assert 0 < found["cpu_use_percent"] <= 400
    assert status["progress"]["unit"] in ("steps", "s") and status["progress"]["from"]
    assert none.is_error


@pytest.mark.parametrize(
    ("kind", "params", "settings", "field"),
    [
        ("lj_argon", {}, {"script": "shell touch hacked\n"}, "settings.script"),
        ("lj_argon", {}, {"folders": ["/etc"]}, "settings.folders"),
        ("lj_argon", {}, {"mode": "/bin/sh"}, "settings.mode"),
        ("dft_energy", {}, {"calculator": "os:system"}, "settings.calculator"),
        ("dft_energy", {}, {"command": "sh -c id"}, "settings.command"),
        ("dft_energy", {}, {"checkpoint": "/etc/passwd"}, "settings.checkpoint"),
        ("query_materials_database", {"source": "/etc"}, {}, "source"),
        ("query_materials_database", {"source": "somewhere"}, {}, "source"),
        ("smiles_to_xyz", {"smiles": "../../etc/passwd"}, {}, "smiles"),
        ("smiles_to_xyz", {"smiles": "a/../b"}, {}, "smiles"),
    ],
)
def test_a_client_names_neither_code_nor_a_file_of_this_machine(drive, workspace, kind, params, settings, field):
    asked = {"kind": kind, "params": params, "settings": settings, "site": "threads"}
    assert _refused(drive, "run_job", asked)["field"] == field
    assert workspace.list()["runs"] == []
