"""Suggestions come of words alone: the same for the same goal, none where nothing is ahead."""

from __future__ import annotations

import pytest

from hpcagent.agents.enhancer import enhanced, suggest
from hpcagent.agents.pool import Specialist
from hpcagent.agents.tools import AgentTool


class Here:
    """A pool that is written down."""

    def __init__(self, **tools):
        made = {name: AgentTool(name, says, {}, lambda caller, given: {}) for name, says in tools.items()}
        self._tools = {
            "builder": [made["smiles_to_xyz"], made["packmol_box"]],
            "simulator": [made["run_nvt"], made["plot_thermo"]],
        }

    def specialists(self):
        return [Specialist(name, f"You are a {name}.", ()) for name in sorted(self._tools)]

    def tools_of(self, one):
        return self._tools[one.name]


@pytest.fixture
def pool():
    return Here(
        smiles_to_xyz="Make the structure of a molecule from its SMILES.",
        packmol_box="Pack molecules into a periodic box.",
        run_nvt="Simulate molecules at constant temperature.",
        plot_thermo="Plot temperature and energy of a simulation.",
    )


def test_each_step_has_who_could_do_it(pool):
    goal = "Build water from SMILES, then pack it into a box; run NVT dynamics and then plot the temperature."
    found = [(one.agent, one.tool) for one in suggest(goal, pool)]
    assert found == [
        ("builder", "smiles_to_xyz"),
        ("builder", "packmol_box"),
        ("simulator", "run_nvt"),
        ("simulator", "plot_thermo"),
    ]
    assert suggest(goal, pool) == suggest(goal, pool)
    assert "you may do otherwise" in enhanced(goal, pool) and enhanced(goal, pool).startswith(goal)


def test_what_is_not_clear_is_not_suggested(pool):
    assert suggest("molecules", pool)[0].tool == ""
    assert enhanced("hello there", pool) == "hello there"
