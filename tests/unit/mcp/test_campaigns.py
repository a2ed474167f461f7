"""Campaigns through the MCP server, as a client calls it."""

from __future__ import annotations

import anyio
import pytest

import hpcagent as ha

QUICK = {"fixed.run_time_s": 0.0, "until.max_runs": 8}
TOML = """
app = "synthetic"
space = { x = {}, y = {} }
objective = { maximize = "value" }
policy = "sobol"
until = { max_runs = 4 }
"""


def test_a_campaign_is_estimated_started_followed_and_explained(drive, follow):
    async def body(client):
        names = [one["name"] for one in (await follow.said(client, "list_packaged_campaigns", {}))["campaigns"]]
        asked = {"campaign": "synthetic", "changes": QUICK}
        estimate = await follow.said(client, "estimate_campaign", asked)
        begun = await follow.said(client, "start_campaign", asked)
        again = await follow.said(client, "start_campaign", asked)
        found = await follow.ended(client, begun["campaign_id"])
        known = await follow.said(client, "estimate_campaign", asked)
        mine = {"campaign_id": begun["campaign_id"]}
        why = await follow.answered(client, await follow.said(client, "explain_run", {**mine, "run": "7"}))
        by_id = await follow.answered(
            client, await follow.said(client, "explain_run", {**mine, "run": why["answer"]["execution_id"][:8]})
        )
        none = await follow.answered(client, await follow.said(client, "explain_run", {**mine, "run": "99"}))
        points = await follow.answered(client, await follow.said(client, "recommend_points", {**mine, "n": 2}))
        return names, estimate, begun, again, found, known, why, by_id, none, points

    names, estimate, begun, again, found, known, why, by_id, none, points = drive(body)
    assert {"lj_tuning", "synthetic"} <= set(names)
    assert estimate["runs"] == 8 and estimate["node_hours"] > 0 and estimate["known"] is None
    assert begun["state"] == "running" and not begun["found"] and again["found"]
    assert again["campaign_id"] == begun["campaign_id"] == known["known"]
    assert found["state"] == "completed" and found["runs"]["done"] == found["runs"]["most"] == 8
    assert (
        found["answer_of_runs"] == 8 and found["node_hours"] > 0 and found["question"].startswith("maximize value")
    )
    best = found["answer"]["best"]
    assert 0 <= best["probability_feasible"] <= 1 and set(best["uncertainty"]) == {"value", "error"}
    assert found["answer"]["expected_regret"]["metric"] == "value"
    assert why["answer"]["index"] == 7 and why["answer"]["why"] and why["answer"]["text"].startswith("run 7 ")
    assert by_id["answer"] == why["answer"]
    assert none["state"] == "failed" and "it has runs 0 to 7" in none["error"]["message"]
    assert len(points["answer"]["recommended_points"]) == 2


@pytest.mark.lammps
def test_lammps_is_tuned_by_the_packaged_campaign(drive, follow, workspace):
    changes = {"until.max_runs": 4, "fixed.steps": 500, "fixed.equil_steps": 100, "batch_size": 2}
    changes |= {"confirm.top": 0}

    async def body(client):
        begun = await follow.said(client, "start_campaign", {"campaign": "lj_tuning", "changes": changes})
        found = await follow.ended(client, begun["campaign_id"])
        written = await follow.answered(
            client, await follow.said(client, "make_report", {"campaign_id": begun["campaign_id"]})
        )
        plot = await client.call_tool(
            "fetch_artifact",
            {"run_id": begun["campaign_id"], "path": written["answer"]["files"][-1], "length": 65536},
        )
        return found, written, plot

    found, written, plot = drive(body)
    assert found["state"] == "completed", found["note"]
    assert found["runs"]["done"] >= 2 and found["runs"]["most"] == 4 and found["app"] == "lj_argon"
    assert "report/report.md" in written["answer"]["files"]
    assert str(workspace.folder.root) not in str(written)
    assert written["answer"]["files"][-1].endswith(".png")
    assert any(block.type in ("image", "resource_link") for block in plot.content)


def test_a_campaign_goes_on_and_is_stopped_without_anybody_waiting(drive, follow):
    slow = {"fixed.run_time_s": 0.5, "until.max_runs": 200, "until.node_hours": 5.0}

    async def body(client):
        mine = await follow.said(client, "start_campaign", {"campaign": "synthetic", "changes": slow})
        mine = {"campaign_id": mine["campaign_id"]}
        going = await follow.refused(client, "extend_campaign", {**mine, "changes": {"until.max_runs": 300}})
        asked = await follow.said(client, "stop_campaign", mine)  # also one that has hardly begun
        stopped = await follow.until(client, "get_campaign", mine, lambda c: c["state"] != "running")
        done = stopped["runs"]["done"]
        more = {"until.max_runs": done + 2, "fixed.run_time_s": 0.5}
        on = await follow.said(
            client, "extend_campaign", {**mine, "changes": {"until.max_runs": max(done, 1) + 2}}
        )
        last = await follow.until(client, "get_campaign", mine, lambda c: c["state"] == "completed")
        again = await follow.said(client, "stop_campaign", mine)
        return going, asked, stopped, more, on, last, again

    going, asked, stopped, _, on, last, again = drive(body)
    assert going["refused"]["field"] == "identity"
    assert asked["state"] == "running" and stopped["state"] == "stopped"
    assert on["state"] == "running"
    assert last["runs"]["done"] >= max(stopped["runs"]["done"], 1)
    assert again["state"] == "completed" and again["note"] == "it had ended before"


def test_other_policies_are_played_on_what_was_recorded(drive, follow):
    async def body(client):
        begun = await follow.said(client, "start_campaign", {"campaign": TOML})
        await follow.ended(client, begun["campaign_id"])
        asked = {"campaign_id": begun["campaign_id"], "policies": ["random"], "seeds": 2}
        first = await follow.said(client, "replay_campaign", asked)
        second = await follow.said(client, "replay_campaign", asked)
        return (
            first,
            second,
            await follow.answered(client, first),
            await follow.said(client, "replay_campaign", asked),
        )

    first, second, found, third = drive(body)
    assert first["handle"] == second["handle"] == third["handle"]
    assert third["state"] == found["state"] and third["answer"] == found["answer"]
    if found["state"] == "done":  # four points may be too few for a model, which it then says
        assert [one["policy"] for one in found["answer"]["policies"]] == ["sobol", "random"]
    else:
        assert found["error"]["kind"] == "BadInput"


def test_an_optimisation_is_a_campaign(drive, follow):
    async def body(client):
        asked = {"objective_function": "synthetic", "objective": {"maximize": "value"}, "budget": 4}
        begun = await follow.said(client, "bayesian_optimize", {**asked, "search_space": {"x": {}, "y": {}}})
        wrong = await follow.refused(client, "bayesian_optimize", {**asked, "objective_function": "os:system"})
        code = await follow.refused(client, "bayesian_optimize", {**asked, "fixed": {"style": "/etc/passwd"}})
        return begun, wrong, code, await follow.ended(client, begun["campaign_id"])

    begun, wrong, code, found = drive(body)
    assert begun["campaign_id"].startswith("c-") and found["runs"]["done"] == 4
    assert wrong["refused"]["field"] == "app" and code["refused"]["field"] == "fixed.style"


NOT_DATA = [
    ("no_such_campaign", {}, "campaign"),
    ("/etc/passwd", {}, "campaign"),
    ("synthetic.toml", {}, "campaign"),
    ("app = [", {}, "campaign"),
    ("name = 'x'", {}, "app"),
    ("synthetic", {"app": "os:system"}, "app"),
    ("synthetic", {"policy.name": "os:system"}, "policy.name"),
    ("synthetic", {"policy": "own_module:Policy"}, "policy.name"),
    ("synthetic", {"policy.name": "portfolio", "policy.ladder": ["own:Policy"]}, "policy.ladder[0]"),
    ("synthetic", {"policy.name": "gest", "policy.generator": "own:Generator"}, "policy.generator"),
    ("synthetic", {"until.own:Stop": {}}, "until"),
    ("synthetic", {"settings.calculator": "own:Calculator"}, "settings"),
    ("synthetic", {"earlier": ["/home"]}, "earlier"),
    ("synthetic", {"cache": "/home"}, "cache"),
    ("synthetic", {"site": "/tmp/site.toml"}, "site"),
    ("synthetic", {"fixed.style": "../../secret"}, "fixed.style"),
    (TOML.replace('"synthetic"', '"/tmp/in.lj"'), {}, "app"),
    (TOML.replace('"synthetic"', '"synthetic@9.9.9"'), {}, "app"),
    (TOML.replace('"sobol"', '"own:Policy"'), {}, "policy.name"),
]


def test_what_is_no_data_is_refused_by_field_and_nothing_is_imported(drive, follow, workspace):
    async def body(client):
        found = []
        for campaign, changes, _ in NOT_DATA:
            asked = {"campaign": campaign, "changes": changes}
            found.append(await follow.refused(client, "estimate_campaign", asked))
            assert await follow.refused(client, "start_campaign", asked) == found[-1]
        return found

    fields = [one["refused"].get("field") for one in drive(body)]
    assert fields == [field for _, _, field in NOT_DATA]
    assert workspace.list()["runs"] == []


def test_a_campaign_and_its_answers_are_there_for_those_who_may_see_it(drive, follow, workspace):
    rules = 'name = "group"\ndefault_site = "threads"\n[people.ada]\nrole = "planner"\n[people.bob]\nrole = "planner"\n'
    (workspace.folder.root / "workspace.toml").write_text(rules)

    async def start(client):
        begun = await follow.said(client, "start_campaign", {"campaign": "synthetic", "changes": QUICK})
        await follow.ended(client, begun["campaign_id"])
        return begun["campaign_id"], await follow.said(
            client, "make_report", {"campaign_id": begun["campaign_id"]}
        )

    campaign, report = drive(start, as_="ada")

    async def look(client):
        found = [await follow.refused(client, "get_answer", {"handle": report["handle"]})]
        for tool, more in (
            ("get_campaign", {}),
            ("explain_run", {"run": "1"}),
            ("replay_campaign", {"policies": []}),
            ("recommend_points", {}),
            ("make_report", {}),
            ("stop_campaign", {}),
            ("extend_campaign", {"changes": {"until.max_runs": 9}}),
        ):
            found.append(await follow.refused(client, tool, {"campaign_id": campaign, **more}))
        return found, await follow.refused(client, "get_answer", {"handle": "j-" + "0" * 32})

    others, unknown = drive(look, as_="bob")
    assert all("there is no run" in one["error"] for one in others[1:]), others
    # Nobody can tell an answer that is another's from one that there is not.
    mine, none = others[0]["error"], unknown["error"]
    assert mine.replace(report["handle"], "") == none.replace("j-" + "0" * 32, "")


def test_a_person_is_asked_before_a_campaign_that_needs_it(drive, follow, workspace):
    rules = 'name = "group"\ndefault_site = "threads"\n[[approval]]\napp = "synthetic"\n'
    (workspace.folder.root / "workspace.toml").write_text(rules)
    from mcp_types import ElicitResult

    async def yes(context, params):
        return ElicitResult(action="accept", content={"approve": True})

    async def body(client):
        asked = {"campaign": "synthetic", "changes": QUICK}
        estimate = await follow.said(client, "estimate_campaign", asked)
        return estimate, await client.call_tool("start_campaign", asked)

    estimate, refused_ = drive(body)
    assert estimate["approval"] and refused_.is_error and "workspace approve" in str(refused_.structured_content)
    _, let_through = drive(body, elicitation_callback=yes)
    assert not let_through.is_error and let_through.structured_content["state"] == "running"


def test_an_answer_outlives_server_and_service(drive, follow, workspace):
    async def ask(client):
        begun = await follow.said(client, "start_campaign", {"campaign": "synthetic", "changes": QUICK})
        await follow.ended(client, begun["campaign_id"])
        return await follow.said(client, "make_report", {"campaign_id": begun["campaign_id"]})

    later = drive(ask)
    workspace.end()
    found = drive(lambda client: follow.answered(client, later))
    assert found["state"] == "done" and "report/report.md" in found["answer"]["files"]
    assert isinstance(workspace, ha.Workspace)


def test_a_question_is_not_waited_for(drive, follow):
    async def body(client):
        begun = await follow.said(client, "start_campaign", {"campaign": "synthetic", "changes": QUICK})
        await follow.ended(client, begun["campaign_id"])
        mine = {"campaign_id": begun["campaign_id"]}
        asked = await follow.said(
            client, "replay_campaign", {**mine, "policies": ["random", "bayes"], "seeds": 30}
        )
        with anyio.fail_after(60):
            status = await follow.said(client, "get_campaign", mine)
        return asked, status

    asked, status = drive(body)
    assert asked["state"] == "running" and asked["answer"] is None
    assert status["state"] == "completed"
