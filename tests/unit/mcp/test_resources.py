"""Resources through the MCP server, as a client lists and reads them."""

from __future__ import annotations

import base64
import importlib.util
import json
import os

import anyio
import pytest

pytest.importorskip("mcp")

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceTemplateReference

from hpcagent.mcp.callers import Callers
from hpcagent.mcp.resources import LARGEST_FILE
from hpcagent.mcp.server import make_server


@pytest.fixture
def run(workspace):
    """A run that has ended, and its folder."""
    found = workspace.run("synthetic", {"x": 0.3})
    status = workspace.wait(found["id"], 30)
    return found["id"], workspace.folder.work / status["execution_id"]


@pytest.fixture
def read(drive):
    """Read a resource."""

    def reading(uri, **more):
        async def body(client):
            try:
                return (await client.read_resource(uri)).contents[0]
            except MCPError as error:  # raised in here it would come out in a group
                return error

        found = drive(body, **more)
        if isinstance(found, MCPError):
            raise found
        return found

    return reading


def refused(read, uri, **more):
    with pytest.raises(MCPError) as error:
        read(uri, **more)
    return error.value.code, error.value.message


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_lists_have_the_workspace_what_is_shared_and_the_callers_runs(drive, run, mode):
    async def body(client):
        return (await client.list_resources()).resources, (
            await client.list_resource_templates()
        ).resource_templates

    resources, templates = drive(body, mode=mode)
    by_uri = {one.uri: one for one in resources}
    assert {"workspace://overview", "docs://overview", "resource://catalyst_db"} <= set(by_uri)
    assert by_uri[f"run://{run[0]}"].annotations.last_modified.endswith("Z")
    about = by_uri["resource://lab_notebook"].meta["hpcagent/resource"]
    assert set(about) == {"identity", "access", "schema", "storage", "lifecycle", "provenance", "units"}
    assert about["identity"]["type"] == "document" and about["access"]["access"] == "append"
    assert about["access"]["auth_scope"] == "user" and "replace" not in about["access"]["you_may"]
    assert about["provenance"]["checksum"] == "sha256" and about["lifecycle"]["create_on_demand"] is True
    for one in (*resources, *templates):
        assert one.title and one.description and one.annotations.audience, one
    assert "run://{run_id}/files/{+path}" in {one.uri_template for one in templates}


def test_every_resource_of_the_list_can_be_read(drive, run, workspace):
    workspace.resources().database().add(
        {
            "metal": "Cu",
            "support": "ZnO",
            "adsorbate": "CO",
            "adsorption_energy": -0.5,
            "reference": "r",
            "method": "m",
        }
    )
    workspace.resources().notebook().append({"experiment_id": "e1", "inputs": {}, "output_uri": "dft_results/a"})

    async def body(client):
        listed = (await client.list_resources()).resources
        return {one.uri: (one, (await client.read_resource(one.uri)).contents[0]) for one in listed}

    found = drive(body)
    for listed, content in found.values():
        assert content.mime_type == listed.mime_type and content.text, listed.uri
    (row,) = json.loads(found["resource://catalyst_db"][1].text)["items"]
    assert row["metal"] == "Cu" and row["adsorption_energy"] == -0.5
    assert json.loads(found["resource://catalyst_db"][1].text)["units"]["adsorption_energy"] == "eV"
    assert json.loads(found["resource://lab_notebook"][1].text)["items"][0]["content"]["experiment_id"] == "e1"
    overview = json.loads(found["workspace://overview"][1].text)
    assert "synthetic" in overview["apps"] and overview["approvals_pending"] == []


def test_reading_makes_nothing(read, workspace):
    assert json.loads(read("resource://dft_results").text)["items"] == []
    assert workspace.resources().provisioned == ()


def test_files_come_as_text_or_as_bytes(read, run):
    identity, folder = run
    (folder / "sub dir").mkdir()
    (folder / "sub dir" / "50%.log").write_text("Step 1\x1b[31m\npassword=hunter22hunter22\n")
    (folder / "image.png").write_bytes(b"\x89PNG\0\0")
    (folder / "table.csv").write_text("a,b\n")
    (folder / "latin.txt").write_bytes(b"\xe4\xf6")
    text = read(f"run://{identity}/files/sub%20dir/50%25.log")
    assert text.mime_type == "text/plain" and text.text == "Step 1\npassword=(hidden)********\n"
    image = read(f"run://{identity}/files/image.png")
    assert image.mime_type == "image/png" and base64.b64decode(image.blob) == b"\x89PNG\0\0"
    assert read(f"run://{identity}/files/table.csv").mime_type == "text/csv"
    assert read(f"run://{identity}/files/latin.txt").mime_type == "application/octet-stream"


def test_a_large_file_names_the_tool_that_reads_it(read, run):
    identity, folder = run
    (folder / "full.log").write_bytes(b"a" * LARGEST_FILE)
    (folder / "large.log").write_bytes(b"a" * (LARGEST_FILE + 1))
    assert len(read(f"run://{identity}/files/full.log").text) == LARGEST_FILE
    code, message = refused(read, f"run://{identity}/files/large.log")
    assert code == -32603 and "fetch_artifact" in message and str(LARGEST_FILE + 1) in message


OUTSIDE = (
    "../../journal.jsonl",
    "..%2f..%2fjournal.jsonl",
    "%2e%2e/%2e%2e/journal.jsonl",
    "/etc/passwd",
    "%2fetc/passwd",
    "link",
    "folder",
    "folder/passwd",
    "pipe",
    "result.json%00.txt",
    "..\\..\\journal.jsonl",
    "",
)


def test_nothing_outside_of_a_run_is_read(drive, run):
    identity, folder = run
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "folder").symlink_to("/etc")
    os.mkfifo(folder / "pipe")

    async def body(client):
        for path in OUTSIDE:
            with pytest.raises(MCPError) as error:
                await client.read_resource(f"run://{identity}/files/{path}")
            assert error.value.code == -32602 and "root:" not in error.value.message, path

    drive(body)


def test_anothers_runs_are_as_unknown_as_none(read, people, drive):
    hers = people("ada").run("synthetic", {"x": 0.4})["id"]
    people("ada").wait(hers, 30)
    for address in (
        "run://{}",
        "run://{}/log",
        "run://{}/files/result.json",
        "campaign://{}",
        "campaign://{}/report",
    ):
        said = [refused(read, address.format(one), as_="bob") for one in (hers, "r-none")]
        assert said[0] == (said[1][0], said[1][1].replace("r-none", hers)) and said[0][0] == -32602, address

    async def body(client):
        listed = {one.uri for one in (await client.list_resources()).resources}
        template = ResourceTemplateReference(uri="run://{run_id}")
        return listed, (await client.complete(template, {"name": "run_id", "value": ""})).completion.values

    assert drive(body, as_="ada")[1] == [hers]
    listed, completed = drive(body, as_="bob")
    assert completed == [] and f"run://{hers}" not in listed


def test_addresses_are_completed(drive, run, workspace):
    folder = workspace.folder.work
    workspace.resources().objects().put("Cu.json", {"energy_ev": -0.5}, run_id="r1")

    async def body(client):
        async def values(uri, name, value="", **others):
            ref = ResourceTemplateReference(uri=uri)
            found = await client.complete(ref, {"name": name, "value": value}, context_arguments=others or None)
            assert len(found.completion.values) <= 100
            return found.completion.values

        return (
            await values("run://{run_id}/files/{+path}", "path", "res", run_id=run[0]),
            await values("app://{app}", "app", "synth"),
            await values("docs://{page}", "page", "a"),
            await values("resource://{resource}", "resource", "cat"),
            await values("resource://{resource}/{key}", "key", "", resource="dft_results"),
            await values("run://{run_id}/files/{+path}", "path", "", run_id="r-none"),
            await values("app://{app}", "nothing"),
        )

    paths, apps, pages, names, keys, none, unknown = drive(body)
    assert (paths, apps, pages, names, keys) == (
        ["result.json"],
        ["synthetic"],
        ["apps"],
        ["catalyst_db"],
        ["Cu.json"],
    )
    assert none == unknown == [] and folder.is_dir()


def test_a_campaign_has_answer_report_and_plots(drive, workspace, monkeypatch):
    monkeypatch.setenv("HPCAGENT_TESTS_PLOTS", "1")  # tests/warm.py
    goal = {"maximize": "value"}
    found = workspace.bayesian_optimize("synthetic", goal, 4, search_space={"x": {}, "y": {}}, site="threads")
    uri = f"campaign://{found['id']}"

    async def body(client):
        with pytest.raises(MCPError, match="no report") as none:
            await client.read_resource(f"{uri}/report")
        assert none.value.code == -32602
        async with client.listen(resource_subscriptions=[f"{uri}/report"]) as stream:
            with anyio.fail_after(60):
                async for _ in stream:
                    try:
                        report = (await client.read_resource(f"{uri}/report")).contents[0]
                        break
                    except MCPError:  # it has ended, and its report is still written
                        pass
        template = ResourceTemplateReference(uri="campaign://{campaign_id}/plots/{plot}")
        argument = {"name": "plot", "value": ""}
        plots = await client.complete(template, argument, context_arguments={"campaign_id": found["id"]})
        with anyio.fail_after(60):
            while True:  # the answer is worked out in the background
                answer = json.loads((await client.read_resource(uri)).contents[0].text)
                if answer["answer_handle"] is None:
                    break
                await anyio.sleep(0.05)
        assert answer["campaign_id"] == found["id"] and answer["answer"]["best"]["units"]["value"] == "1"
        with pytest.raises(MCPError):
            await client.read_resource(f"{uri}/plots/..%2f..%2fevents")
        for name in plots.completion.values:
            for address in (name, name.removesuffix(".png")):
                plot = (await client.read_resource(f"{uri}/plots/{address}")).contents[0]
                assert plot.mime_type == "image/png" and base64.b64decode(plot.blob).startswith(b"\x89PNG")
        return report, plots.completion.values

    report, plots = drive(body)
    assert report.mime_type == "text/markdown" and report.text.startswith("# ")
    assert "progress.png" in plots or importlib.util.find_spec("matplotlib") is None


def test_a_token_without_a_scope_shows_less(workspace, run):
    class Limited(Callers):
        def caller(self, person=None, scopes=frozenset({"runs:write"}), *, program=""):
            return super().caller(person, scopes, program=program)

    async def main():
        callers = Limited(workspace.folder.root)
        try:
            async with Client(make_server(callers)) as client:
                tools = {one.name for one in (await client.list_tools()).tools}
                with pytest.raises(MCPError, match="runs:read"):
                    await client.read_resource(f"run://{run[0]}")
                with pytest.raises(MCPError, match="runs:read"):
                    async with client.listen(resource_subscriptions=[f"run://{run[0]}"]):
                        pass
                return tools, (await client.list_resources()).resources
        finally:
            callers.close()

    tools, resources = anyio.run(main)
    assert "run_job" in tools and "get_status" not in tools and resources == []


def test_the_overview_shows_the_sites_that_the_caller_may_use(drive, workspace):
    rules = workspace.folder.root / "workspace.toml"
    rules.write_text(
        rules.read_text() + '[people.ada]\nrole = "guest"\n[roles.guest]\nmay = ["read"]\nsites = ["threads"]\n'
        "[sites.threads]\n[sites.laptop]\nusd_per_node_hour = 7.0\n"
    )

    async def body(client):
        return (await client.read_resource("workspace://overview")).contents[0].text

    said = json.loads(drive(body, as_="ada"))
    assert list(said["sites"]) == ["threads"]
    assert json.loads(drive(body))["sites"]["laptop"]["usd_per_node_hour"] == 7.0
