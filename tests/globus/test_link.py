"""The link over the real SDK, broker and endpoint: faults on the way lose no answer and repeat none."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from hpcagent.errors import AppFailed, SiteFailed
from hpcagent.sites.endpoint import protocol
from hpcagent.sites.endpoint.link import Link, Sent
from hpcagent.sites.profiles import find_profile


def link_to(rig: Any, told: list[str] | None = None, **fields: Any) -> tuple[Link, str]:
    path: Path = rig.profile(**{"runs_at_once": 2, **fields})
    profile = find_profile(str(path))
    told = [] if told is None else told
    return Link(profile, "workers", tell=told.append), f"{profile.work_dir}/link"


def answers(sent: list[Sent], within_s: float = 120.0) -> list[Any]:
    found = [one.future.result(within_s) for one in sent]
    assert [one["key"] for one in found] == [one.key for one in sent]
    assert [one["error"] for one in found if "error" in one] == []
    return found


def test_submissions_that_fail_cost_one_request_and_the_link_goes_on(rig: Any) -> None:
    told: list[str] = []
    link, root = link_to(rig, told)
    before = rig.service.counts.submitted
    large = protocol.look(root, keys=["0" * 32])
    sent = [link.submit(protocol.look(root, keys=["0" * 32])) for _ in range(200)]
    too_large = link.submit({**large, "padding": "x" * (9 * 2**20)})
    failed = too_large.future.exception(1)
    assert isinstance(failed, AppFailed)
    assert failed.name == "RequestTooLarge"
    answers(sent)
    with rig.service.fail(413, times=1):  # the service's own limit is lower: halves
        answers([link.submit(protocol.look(root, keys=["0" * 32])) for _ in range(6)])
    with rig.service.fail(400, times=1):
        answers([link.submit(protocol.look(root, keys=["0" * 32])) for _ in range(3)])
    with rig.service.fail(503, times=4):
        answers([link.submit(protocol.look(root, keys=["0" * 32]))])
    assert len(told) == 2
    assert rig.service.counts.submitted - before == 210
    bad, root = link_to(rig, user_endpoint_config={"workers": "many"})
    cannot = bad.submit(protocol.look(root, keys=["0" * 32])).future.exception(60)
    assert isinstance(cannot, AppFailed)
    assert cannot.name == "EndpointCannotStart"
    assert "'many' is not of type 'integer'" in cannot.log_tail
    nowhere, root = link_to(rig, endpoint_id="00000000-0000-4000-8000-000000000000")
    ended = nowhere.submit(protocol.look(root, keys=["0" * 32])).future.exception(30)
    assert isinstance(ended, SiteFailed)
    assert "is not known to Globus Compute" in ended.message
    for one in (link, bad, nowhere):
        one.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("endpoint-")] == []


def test_a_restarted_broker_two_links_and_a_reattached_one_lose_nothing(rig: Any) -> None:
    told: list[str] = []
    first, root = link_to(rig, told)
    second, _ = link_to(rig)
    answers(
        [first.submit(protocol.look(root, keys=["0" * 32])), second.submit(protocol.look(root, keys=["0" * 32]))]
    )
    one, two = ([link.submit(protocol.look(root, keys=["0" * 32])) for _ in range(20)] for link in (first, second))
    rig.wait("all are sent", lambda: all(sent.task_id for sent in one + two))
    first.close()  # the other's results are its own
    answers(two)
    rig.broker.stop()
    rig.broker.start()
    third, _ = link_to(rig)
    keys = {sent.task_id: sent.key for sent in one}
    again = list(third.reattach([one[0].task_group_id], keys=keys))
    assert {sent.task_id for sent in one} <= {sent.task_id for sent in again}
    for sent in again:
        assert sent.future.result(60)["key"] == sent.key
    answers([second.submit(protocol.look(root, keys=["0" * 32])) for _ in range(5)], 90)
    second.close()
    third.close()
