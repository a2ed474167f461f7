"""A tool of a plain description: written by a model, checked, tried, pending."""

from __future__ import annotations

import pytest

from hpcagent.errors import BadInput, SourceFailed
from tests.unit.agents.conftest import Script
from tests.unit.web.test_toolbox import TOOL

WRONG = TOOL.replace("mass: float", "mass")


def wrote(*texts):
    """A model that writes these, one after another; what it was told is kept."""
    told = []
    left = iter(texts)

    def answer(seen):
        told.append([part.content for message in seen.messages for part in message.parts][-1])
        return next(left)

    return Script(supervisor=answer), told


def test_what_is_wrong_is_given_back_and_what_is_right_waits_for_a_person(supervisor, workspace):
    script, told = wrote(WRONG, f"Here it is:\n```python\n{TOOL}```\nDone.")
    (card,) = supervisor(script).write_tool("kinetic energy in J of a mass in kg at a speed in m/s")
    assert "mass" in told[1] and "cannot be registered" in told[1]
    assert (card["name"], card["state"], card["tests"]["state"]) == ("kinetic_energy", "pending", "passed")
    whole = workspace.tool("kinetic_energy")
    assert whole["text"] == TOOL and whole["origin"] == "written by the model scripted"
    assert whole["why"].startswith("as described: kinetic energy in J")
    assert "kinetic_energy" not in {one["name"] for one in workspace.apps()}  # nobody has approved it


def test_a_model_that_writes_nothing_of_use_is_given_up_and_nothing_is_registered(supervisor, workspace):
    script, told = wrote(WRONG, "I cannot.", WRONG)
    with pytest.raises(SourceFailed, match=r"after 3 tries.*mass"):
        supervisor(script).write_tool("kinetic energy")
    assert len(told) == 3 and workspace.tools() == []
    with pytest.raises(BadInput, match="no description"):
        supervisor(script).write_tool(" ")


def test_a_text_whose_tests_fail_is_registered_with_what_they_said(supervisor):
    script, _ = wrote(TOOL.replace("== 9.0", "== 10.0"))
    (card,) = supervisor(script).write_tool("kinetic energy")
    assert (card["state"], card["tests"]["state"]) == ("pending", "failed")


def test_a_model_that_cannot_be_asked_is_said(supervisor):
    def broken(seen):
        from pydantic_ai.exceptions import ModelHTTPError

        raise ModelHTTPError(503, "scripted")

    with pytest.raises(SourceFailed, match="503"):
        supervisor(Script(supervisor=broken)).write_tool("kinetic energy")
