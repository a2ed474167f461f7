"""Tools of one's own and agents, as the page asks for them."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")

from hpcagent.web.toolbox import Toolbox

TOOL = '''def kinetic_energy(mass: float, speed: float) -> float:
    """Kinetic energy of a body.

    Args:
        mass: In kg, 0 to 1000.
        speed: In m/s, 0 to 100.

    Returns:
        In J.
    """
    return 0.5 * mass * speed**2


def test_kinetic_energy():
    assert kinetic_energy(2.0, 3.0) == 9.0
'''


def registered(page: Any, text: str = TOOL) -> dict[str, Any]:
    """A tool whose tests have been run."""
    page.post("tools", {"text": text, "why": "for the group"})
    return dict(page.until("tool/kinetic_energy", lambda one: one["tests"]["state"] != "waiting"))


def test_a_tool_is_registered_read_tried_approved_by_its_text_and_given_to_an_agent(page):
    card = registered(page)
    assert (card["state"], card["tests"]["state"], card["text"]) == ("pending", "passed", TOOL)
    other = {"approve": True, "sha256": "0" * 64}
    refused = page.post("tool/kinetic_energy/decide", other, status=400)
    assert "was changed since it was looked at" in refused["error"]
    done = page.post("tool/kinetic_energy/decide", {"approve": True, "sha256": card["sha256"], "note": "read"})
    assert done["state"] == "approved"
    assert page.get("apps/kinetic_energy")["metrics"][0]["unit"] == "J"
    page.post("agents", {"name": "mechanic", "role": "You know bodies that move."})
    page.post("agent/mechanic/tools", {"tool": "kinetic_energy"})
    assert page.get("tool/kinetic_energy")["agents"] == ["mechanic"]
    run = page.post("run", {"app": "kinetic_energy", "params": {"mass": 2.0, "speed": 4.0}})["id"]
    status = page.until(f"run/{run}", lambda one: one["ended_at"] is not None)
    assert (status["metrics"], status["units"]) == ({"kinetic_energy": 16.0}, {"kinetic_energy": "J"})
    assert status["param_units"] == {"mass": "kg", "speed": "m/s"}
    page.post("agent/mechanic/tools", {"tool": "kinetic_energy", "take": True})
    assert page.get("tool/kinetic_energy")["agents"] == []
    page.post("agent/mechanic/remove")
    snapshot = page.until("snapshot", lambda one: one["tools"] and not one["agents"])
    assert [one["name"] for one in snapshot["tools"]] == ["kinetic_energy"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TOOL.replace("mass: float", "mass"), "mass"),
        ("def broken(:\n    pass\n", "syntax"),
        (TOOL.replace("In J.", "A number."), "unit"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(page, text, said):
    refused = page.post("tools", {"text": text}, status=400)
    assert said in refused["error"].lower()


def test_a_text_that_was_changed_since_it_was_shown_is_not_approved(page):
    first = registered(page)
    page.post("tools", {"text": TOOL.replace("0.5 *", "0.25 *").replace("== 9.0", "== 4.5")})
    refused = page.post("tool/kinetic_energy/decide", {"approve": True, "sha256": first["sha256"]}, status=400)
    assert "was changed since it was looked at" in refused["error"]


def test_a_text_with_a_character_that_nobody_sees_is_refused(page):
    asked = {"text": TOOL.replace("return 0.5", "return 0.5  # \u202e\n    return 0.5")}
    assert "U+202E is not seen" in page.post("tools", asked, status=400)["error"]


def test_who_may_not_may_not(workspace, served: Callable[..., Any], page):
    card = registered(page)
    bob = served(as_="bob")
    yes = {"approve": True, "sha256": card["sha256"]}
    for path, asked in {
        "tool/kinetic_energy/decide": yes,
        "tools": {"text": TOOL.replace("kinetic_energy", "other")},
        "agents": {"name": "one", "role": "Does things."},
    }.items():
        assert "viewer" in bob.post(path, asked, status=403)["error"]
    assert workspace.tool("kinetic_energy")["state"] == "pending"
    assert page.post("tool/kinetic_energy/decide", {**yes, "approve": False, "note": "no"})["state"] == "rejected"


def test_of_a_text_that_waits_for_approval_every_character_is_seen():
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    unseen = [c for c in every if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\t\n"]
    unseen += ["\u206a", "\U000e0041", "\ufe0f", "\U000e0100", "\u3164", "\u2800"]
    workspace: Any = SimpleNamespace(tool=lambda name: {"text": f"a{''.join(unseen)}b", "state": "pending"})
    text = Toolbox(workspace).tool({"name": "x"}, {})["text"]
    left = [f"U+{ord(c):04X}" for c in unseen if c in text]
    assert left == [] and text.startswith("a\\x00") and "\\u206a\\U000e0041\\ufe0f\\U000e0100" in text
    workspace = SimpleNamespace(tool=lambda name: {"text": "e = 1.0  # Å, µs\n\tx", "state": "pending"})
    assert Toolbox(workspace).tool({"name": "x"}, {})["text"] == "e = 1.0  # Å, µs\n\tx"
