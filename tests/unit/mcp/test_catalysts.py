"""Catalysts through the MCP server: looked up, computed once, written down."""

from __future__ import annotations

import os
import signal

import pytest

HOW = {"engine": "emt", "site": "threads", "params": {"relax": "none", "layers": 2, "site": "fcc"}}
CU_ZNO = {"structure": "Cu", "adsorbate": "O", "catalyst": "Cu-ZnO", **HOW}
PAPER = {
    "metal": "Cu",
    "support": "ZnO",
    "adsorbate": "CO2",
    "adsorption_energy": -0.4,
    "reference": "doi:10.0000/example",
    "method": "measured",
}


async def _call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.structured_content
    return result.structured_content


def _stored(found):
    return found["state"] in ("recorded", "failed")


@pytest.mark.slow
def test_search_then_compute_only_if_none_then_notebook(drive, workspace, follow):
    async def body(client):
        none = await _call(client, "query_database", query="Cu-ZnO")
        mine = await _call(client, "subscribe_events", events=["new_promising_catalyst"])
        begun = await _call(client, "run_dft", **CU_ZNO, threshold_ev=10.0)
        done = await follow.until(client, "get_dft", {"run_id": begun["run_id"]}, _stored)
        rows = await _call(client, "query_database", query="Cu-ZnO")
        again = await _call(client, "run_dft", **CU_ZNO)
        inputs = {"catalyst": "Cu-ZnO", "adsorbate": "O"}
        entry = await _call(
            client,
            "append_notebook_entry",
            experiment_id="what we know of Cu-ZnO",
            inputs=inputs,
            output_uri=done["result_uri"],
        )
        told = await _call(client, "get_notifications", subscription_id=mine["subscription_id"])
        return none, begun, done, rows, again, entry, told["notifications"]

    none, begun, done, rows, again, entry, told = drive(body)
    assert none["total"] == 0 and begun["state"] in ("pending", "running") and begun["run_id"]
    assert done["state"] == "recorded" and done["row"]["support"] == "ZnO"
    assert any("support is in the name only" in note for note in done["notes"])
    assert rows["total"] == 1
    assert rows["records"][0]["values"]["adsorption_energy"] == done["adsorption_energy_ev"]
    assert rows["records"][0]["units"]["adsorption_energy"] == "eV"
    assert again["state"] == "found" and again["run_id"] == begun["run_id"]
    assert again["notes"] == done["notes"] and any("no DFT" in note for note in again["notes"])
    assert again["adsorption_energy_ev"] == done["adsorption_energy_ev"]
    assert len(workspace.list(app="adsorption")["runs"]) == 1
    resources = workspace.resources()
    entries = resources.notebook().entries().items
    assert [one["inputs"]["catalyst"] for one in entries] == ["Cu-ZnO", "Cu-ZnO"] and entry["number"] == 2
    assert entries[0]["output_uri"] == done["result_uri"] and resources.notebook().verify() == 2
    stored = resources.objects().get(done["result_uri"].partition("/")[2])
    assert stored["metrics"]["adsorption_energy"] == pytest.approx(done["adsorption_energy_ev"], abs=1e-9)
    assert stored["runs"] == {stored["experiment_id"]: begun["run_id"]}
    assert [one["payload"]["catalyst"] for one in told] == ["Cu-ZnO"]


def test_with_its_two_arguments_alone_it_says_what_is_missing(drive, workspace):
    async def body(client):
        return await client.call_tool("run_dft", {"structure": "Cu", "adsorbate": "O"})

    refused = drive(body).structured_content["refused"]
    assert "give kspacing" in refused["why"] and "emt" in refused["why"] and refused["value"] == "pyscf"
    assert workspace.list()["runs"] == []


@pytest.mark.slow
def test_the_run_of_a_row_is_known_by_its_execution_id_and_its_files_by_the_chain(drive, workspace, follow):
    async def body(client):
        begun = await _call(client, "run_dft", **CU_ZNO)
        await follow.until(client, "get_dft", {"run_id": begun["run_id"]}, _stored)
        status = await _call(client, "get_status", run_id=begun["run_id"])
        by_work = await _call(client, "get_status", run_id=status["execution_id"])
        listed = await _call(client, "list_artifacts", run_id=begun["run_id"])
        path = status["artifacts"]["structure"]
        fetched = await _call(client, "fetch_artifact", run_id=begun["run_id"], path=path)
        read = await client.read_resource(fetched["uri"])
        inner = path.split("/")[1]
        other = await _call(client, "run_job", kind="oscillator", params={"max_steps": 2})
        theirs = workspace.wait(other["run_id"], timeout_s=60)["execution_id"]
        wrong = [
            f"inner/{theirs}/manifest.json",
            f"inner/../{inner}/result.json",
            f"../{inner}/result.json",
            "inner",
        ]
        refused = [
            await client.call_tool("fetch_artifact", {"run_id": begun["run_id"], "path": one}) for one in wrong
        ]
        return begun, status, by_work, listed, path, fetched, read, refused

    begun, status, by_work, listed, path, fetched, read, refused = drive(body)
    assert by_work["run_id"] == begun["run_id"] and status["level_of_theory"]["engine"] == "emt"
    assert path.startswith("inner/") and path in {one["path"] for one in listed["files"]}
    assert "Lattice" in fetched["text"] and fetched["path"] == path and read.contents[0].text == fetched["text"]
    assert all(one.is_error for one in refused)


@pytest.mark.slow
def test_a_service_that_was_killed_records_it_all_the_same_and_once(drive, workspace, follow):
    async def body(client):
        begun = await _call(client, "run_dft", **CU_ZNO)
        os.kill(workspace.about()["pid"], signal.SIGKILL)
        return await follow.until(client, "get_dft", {"run_id": begun["run_id"]}, _stored)

    done = drive(body)
    assert done["state"] == "recorded"
    resources = workspace.resources()
    assert len(resources.notebook().entries().items) == 1
    assert resources.database().query({}, limit=10).total == 1


@pytest.mark.slow
def test_a_run_that_fails_is_an_entry_without_output_once(drive, workspace, follow):
    async def body(client):
        wrong = {**CU_ZNO, "adsorbate": "Zz9"}
        begun = await _call(client, "run_dft", **wrong)
        done = await follow.until(client, "get_dft", {"run_id": begun["run_id"]}, _stored)
        return done, await _call(client, "run_dft", **wrong)

    done, again = drive(body)
    assert done["state"] == again["state"] == "failed" and "Zz9" in done["error"]
    assert done["repair"] == again["repair"] == workspace.status(done["run_id"])["failure"]["repair"]
    entries = workspace.resources().notebook().entries().items
    assert len(entries) == 1 and entries[0]["output_uri"] is None and entries[0]["failure"]["message"]


def test_a_row_from_a_paper_will_do_where_any_method_is_asked_for(drive, workspace):
    async def body(client):
        added = await _call(client, "add_catalyst", **PAPER)
        asked = {**CU_ZNO, "adsorbate": "CO2", "accept": "any_method"}
        found = await _call(client, "run_dft", **asked)
        strong = {"ranges": {"adsorption_energy": {"max": -300, "unit": "meV"}}, "texts": {"adsorbate": "CO2"}}
        rows = await _call(client, "query_database", filters=strong)
        unknown = {"filters": {"ranges": {"no_such_column": {"min": 1}}}}
        assert (await client.call_tool("query_database", unknown)).is_error
        weak = {"ranges": {"adsorption_energy": {"max": -500, "unit": "meV"}}}
        return added, found, rows, await _call(client, "query_database", filters=weak)

    added, found, rows, none = drive(body)
    assert found["state"] == "found" and found["adsorption_energy_ev"] == -0.4 and found["run_id"] is None
    assert found["result_uri"] == "doi:10.0000/example" and found["notes"]
    assert [one["artifact_id"] for one in rows["records"]] == [added["artifact_id"]] and none["total"] == 0
    assert workspace.list()["runs"] == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("run_dft", {**CU_ZNO, "params": {"temperature": 600}}),
        ("run_dft", {**CU_ZNO, "temperature": 600}),
        ("run_dft", {**CU_ZNO, "structure": "/etc/passwd"}),
        ("run_dft", {**CU_ZNO, "structure": "slab.cif"}),
        ("run_dft", {**CU_ZNO, "structure": "Cu\n"}),
        ("run_dft", {**CU_ZNO, "adsorbate": "../O"}),
        ("run_dft", {**CU_ZNO, "catalyst": "Cu; DROP TABLE"}),
        ("run_dft", {**CU_ZNO, "engine": "ase"}),
        ("run_dft", {**CU_ZNO, "site": "/tmp/evil.toml"}),
        ("run_dft", {**CU_ZNO, "params": {"engine": "emt"}}),
        ("run_dft", {**CU_ZNO, "params": {"xc": "PBE\n/\n&cell"}}),
        ("run_dft", {**CU_ZNO, "params": {"metal": "Pt"}}),
        ("query_database", {"query": "SELECT * FROM rows"}),
        ("query_database", {"filters": {"sql": "1=1"}}),
        ("add_catalyst", {**PAPER, "adsorption_energy": "low"}),
        ("append_notebook_entry", {"experiment_id": "x", "inputs": {"catalyst": "Cu"}}),
        ("optimize_geometry", {"structure": "/etc/passwd"}),
        ("plot_band_structure", {"structure": "r-none", "path": "G\nX"}),
        ("get_dft", {"run_id": "../../workspace"}),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_happens(drive, workspace, tool, arguments):
    async def body(client):
        return await client.call_tool(tool, arguments)

    result = drive(body)
    assert result.is_error and result.structured_content["error"], result
    assert workspace.list()["runs"] == []


def test_rights_of_the_role_hold(drive, workspace):
    with (workspace.folder.root / "workspace.toml").open("a") as file:
        file.write('\n[people.eve]\nrole = "viewer"\n\n[people.exe]\nrole = "executor"\n')

    async def body(client):
        inputs = {"catalyst": "Cu", "adsorbate": "O"}
        return (
            await client.call_tool("query_database", {}),
            await client.call_tool("run_dft", CU_ZNO),
            await client.call_tool("add_catalyst", PAPER),
            await client.call_tool("append_notebook_entry", {"experiment_id": "x", "inputs": inputs}),
        )

    read, *refused = drive(body, as_="eve")
    assert not read.is_error and all(one.is_error for one in refused)
    read, _, add, append = drive(body, as_="exe")
    assert not read.is_error and add.is_error and not append.is_error  # an executor names its run
    assert workspace.resources().notebook().entries().items[0].by.startswith("exe")


@pytest.mark.slow
def test_a_structure_is_relaxed(drive, workspace, follow):
    async def body(client):
        built = await _call(client, "run_job", kind="build_crystal", params={"name": "Cu"})
        workspace_run = await follow.run(client, built["run_id"])
        assert workspace_run["state"] == "completed", workspace_run
        relaxed = await _call(
            client, "optimize_geometry", structure=built["run_id"], engine="emt", cell="volume", fmax=0.05
        )
        return await follow.run(client, relaxed["run_id"])

    status = drive(body)
    assert status["state"] == "completed" and status["units"]["energy"] == "eV"


@pytest.mark.slow
@pytest.mark.dft
def test_bands_of_silicon_are_drawn(drive, follow):
    pytest.importorskip("pyscf")

    async def body(client):
        built = await _call(client, "run_job", kind="build_crystal", params={"name": "Si", "cubic": "no"})
        assert (await follow.run(client, built["run_id"]))["state"] == "completed"
        # Few k-points, the smallest basis set and a low cutoff: it only shows that all parts go together.
        rough = {"mesh": "2x2x2", "basis": "gth-szv", "xc": "LDA", "ecut": 400.0}
        begun = await _call(
            client, "plot_band_structure", structure=built["run_id"], path="GX", points=10, params=rough
        )
        status = await follow.run(client, begun["run_id"])
        assert status["state"] == "completed", status["failure"]
        picture = await client.call_tool("fetch_artifact", {"run_id": begun["run_id"], "path": "bands.png"})
        return status, picture

    status, picture = drive(body)
    assert status["metrics"]["gap"] > 0 and status["units"]["gap"] == "eV"
    assert status["artifacts"]["plot"] == "bands.png"
    level = status["level_of_theory"]
    assert (level["xc"], level["basis"], level["pseudopotentials"]) == ("LDA", "gth-szv", "gth-pade")
    assert level["kpoints"] == "2x2x2" and level["charge"] == "0 e"
    assert [block.mime_type for block in picture.content if block.type == "image"] == ["image/png"]
