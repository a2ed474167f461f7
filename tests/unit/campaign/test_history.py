"""The history: now, at a time in the past, grown result by result; the same observations each way."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.decisions import decisions
from hpcagent.campaign.earlier import EarlierRun, Source, WarmStart
from hpcagent.campaign.history import Growing, History
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import snapshot
from hpcagent.campaign.state import State
from hpcagent.model.records import Failure, Manifest, Result


def asked(mode: str = "batch", **more: Any) -> Campaign:
    return Campaign(synthetic, ha.minimize("value"), space={"x": {}, "y": {}}, mode=mode, batch_size=3, **more)


def planned(n: int, **more: Any) -> list[Manifest]:
    return [synthetic.manifest({"x": (i + 1) / 10}, index=i, batch=i // 3, **more) for i in range(n)]


def ran(manifest: Manifest, **more: Any) -> Result:
    value = {"value": 10.0 + manifest.index, "error": 0.1}
    return Result(**{"manifest": manifest, "status": "COMPLETED", "metrics": value} | more)


LOST = {"status": "FAILED", "metrics": {}, "failure": Failure(kind="infrastructure", name="Away", message="gone.")}


def state_of(manifests: list[Manifest]) -> State:
    state = State()
    for manifest in manifests:
        state.add_manifest(manifest)
    return state


@pytest.mark.parametrize("mode", ["batch", "rolling"])
@pytest.mark.parametrize("order", ([2, 0, 1, 4, 3, 5], [5, 3, 4, 1, 0, 2]))
def test_a_history_that_has_grown_is_the_one_worked_out_at_once_and_the_one_of_the_past(
    mode: str, order: list[int]
):
    campaign, manifests = asked(mode), planned(6)
    state = state_of(manifests)
    growing = Growing(campaign, state)
    for i in order:
        if i == 4:  # given up in one session, and repeated in the next
            state.add_result(ran(manifests[i], **LOST))
            assert growing.now().shown() == History.now(campaign, state).shown()
        state.add_result(ran(manifests[i]))
        now = growing.now().shown()
        assert now == History.now(campaign, state).shown() == History.past(campaign, state.rows, None).shown()
    assert [o.index for o in now] == (order if mode == "rolling" else sorted(order))
    assert [o.index for o in History.past(campaign, state.rows[:2], None).shown()] == [
        o.index for o in now if o.index in order[:2]
    ]


def test_of_a_run_that_goes_on_the_longer_one_takes_the_place_in_a_history_that_has_grown() -> None:
    campaign, (first, second, third) = asked(), planned(3)
    longer = third.model_copy(update={"extends": first.execution_id, "times": 2.0, "role": "extended"})
    state = state_of([first, second, longer])
    growing = Growing(campaign, state)
    for result in (ran(first), ran(second)):
        state.add_result(result)
    assert [o.index for o in growing.now().shown()] == [0, 1]
    state.add_result(ran(longer))
    assert [o.index for o in growing.now().shown()] == [1, 2]
    assert growing.now().shown() == History.now(campaign, state).shown()


def test_what_is_shown_is_a_list_of_the_callers_that_does_not_grow() -> None:
    campaign, manifests = asked("rolling"), planned(2)
    state = state_of(manifests)
    growing = Growing(campaign, state)
    state.add_result(ran(manifests[0]))
    before = growing.now().shown()
    state.add_result(ran(manifests[1]))
    assert len(growing.now().shown()) == 2 and len(before) == 1


def test_earlier_runs_come_first_and_those_in_other_circumstances_are_no_contenders() -> None:
    warm = WarmStart(
        host="here",
        earlier=tuple(
            Source(
                folder=kind,
                campaign=kind,
                digest="",
                found=1,
                context={"machine": kind},
                runs=(EarlierRun(params={"x": 0.1, "y": 0.2}, metrics={"value": 1.0}),),
            )
            for kind in ("old", "new")
        ),
    )
    campaign, (manifest,) = asked(context={"machine": "new"}), planned(1)
    history = History(campaign, [ran(manifest)], warm)
    assert [(o.role, o.context.get("machine")) for o in history.shown()][:2] == [
        ("earlier", "old"),
        ("earlier", "new"),
    ]
    assert [o.context.get("machine") for o in history.contending() if o.role == "earlier"] == ["new"]
    assert [o.index for o in history.answering()] == [-1, 0]


def test_each_question_of_a_campaign_with_a_reference_is_put_again_as_it_was(tmp_path: Path) -> None:
    seen: list[Any] = []
    campaign = asked(reference={"params": {"x": 0.5, "y": 0.5}}, until=ha.until.max_runs(9), fixed={"noise": 0.1})

    def note(event: Any) -> None:
        if event.kind == "batch":
            seen.append(snapshot(tmp_path / "r").state)

    ha.run(campaign, site="threads", run_dir=tmp_path / "r", workers=2, watch=note)
    asked_then = list(decisions(tmp_path / "r"))
    assert len(asked_then) == len(seen) > 1
    for state, (before, decision) in zip(seen, pairwise(asked_then), strict=False):
        assert len(before.history) < len(decision.history)
        assert decision.history == History.now(decision.campaign, state).shown()
