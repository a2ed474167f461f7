"""Suggestions by a model: asked for first, of those who are there, behind a goal that stays as it is."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import hpcagent as ha
from hpcagent.agents.supervisor import Limits
from hpcagent.errors import BadInput

GOAL = "pack water and look at it"
STEPS = [
    {"step": "run the box", "agent": "runner", "tool": "run_job"},
    {"step": "look at it", "agent": "nobody", "tool": "run_job"},
    {"step": "ask the runner", "agent": "runner", "tool": "no_such_tool"},
]


class Model:
    """Makes a plan when it is asked for one; else answers."""

    def __init__(self, *plans):
        self.plans, self.goals, self.told = list(plans), [], []

    def __call__(self, messages, info):
        if info.output_tools:
            self.told.append(info.instructions)
            return ModelResponse([ToolCallPart(info.output_tools[0].name, self.plans.pop(0))])
        self.goals.append(messages[0].parts[-1].content)
        return ModelResponse([TextPart("done")])


def asked(workspace, model, **more):
    return ha.Supervisor(workspace, model=FunctionModel(model, model_name="planner-1")).ask(GOAL, **more)


def test_a_model_suggests_only_who_is_there(workspace):
    model = Model({"steps": STEPS})
    reply = asked(workspace, model, suggest="model")
    assert (reply.state, reply.requests) == ("answered", 2)
    heading = "Suggested by the model planner-1 (you may do otherwise):"
    lines = "- run the box: runner, tool run_job\n- look at it\n- ask the runner: runner"
    assert model.goals == [f"{GOAL}\n\n{heading}\n{lines}"]
    assert "runner" in model.told[0] and "run_job" in model.told[0]


def test_a_plan_that_cannot_be_read_is_asked_for_again_then_said(workspace):
    model = Model({"steps": 7}, {"steps": STEPS[:1]})
    assert asked(workspace, model, suggest="model").requests == 3
    assert model.goals[0].endswith("- run the box: runner, tool run_job")
    model = Model({"steps": 7}, {}, {"plan": []})
    reply = asked(workspace, model, suggest="model")
    assert (reply.state, reply.requests) == ("answered", 4)
    assert model.goals[0].startswith(GOAL) and "No suggestion of the model could be read" in model.goals[0]


def test_its_request_is_in_the_limits(workspace):
    boss = ha.Supervisor(workspace, model=FunctionModel(Model({"steps": STEPS})), limits=Limits(hops=1))
    reply = boss.ask(GOAL, suggest="model")
    assert reply.state == "stopped" and "1 requests" in reply.text


def test_nobody_suggests_where_nobody_should(workspace):
    model = Model()
    assert asked(workspace, model, suggest="no").requests == 1
    assert model.goals == [GOAL]
    with pytest.raises(BadInput, match="'words', by the 'model', or 'no'; got True"):
        asked(workspace, model, suggest=True)


def test_what_is_sent_for_a_plan_is_shown(workspace):
    boss = ha.Supervisor(workspace, model=FunctionModel(Model()))
    sent = boss.would_send(GOAL, suggest="model")
    assert (
        sent["goal"] == GOAL
        and sent["planner"].startswith("You take a goal apart")
        and "runner" in sent["planner"]
    )
    assert "planner" not in boss.would_send(GOAL)


def test_a_plan_knows_what_was_asked_and_answered_before(workspace):
    heard = []

    class Hears(Model):
        def __call__(self, messages, info):
            if info.output_tools:
                heard.append(
                    [part.content for one in messages for part in one.parts if part.part_kind != "system-prompt"]
                )
            return super().__call__(messages, info)

    model = Hears({"steps": STEPS[:1]}, {"steps": STEPS[:1]})
    boss = ha.Supervisor(workspace, model=FunctionModel(model))
    thread = boss.ask(GOAL, suggest="model").thread
    boss.ask("the same with skin 1 A", thread=thread, suggest="model")
    assert heard == [[GOAL], [GOAL, "done", "the same with skin 1 A"]]
