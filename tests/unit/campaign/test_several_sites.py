"""One campaign on several sites."""

from __future__ import annotations

import inspect
import json
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.campaign.compare import compare
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.spread import Lot, Spread
from hpcagent.elsewhere.submit import submit
from hpcagent.errors import AppFailed, BadInput, SiteFailed
from hpcagent.model.records import Manifest
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.several import Sites
from hpcagent.sites.several_profiles import Several
from hpcagent.sites.site import Site
from hpcagent.sites.workers.fair_share import Turns
from hpcagent.store.metrics_file import read_table

A, B = Profile(name="a", kind="threads"), Profile(name="b", kind="threads")


@ha.app(
    name="slow", parameters={"x": ha.Float(0, 1, default=0.5)}, metrics={"value": "1"}, estimated_runtime_s=0.05
)
def slow(x: float) -> dict[str, float]:
    time.sleep(0.05)
    return {"value": x}


@ha.app(name="fast", parameters={"x": ha.Float(0, 1, default=0.5)}, metrics={"speed": "1/s"})
def fast(x: float, run: Any) -> dict[str, float]:
    time.sleep(0.03)
    machine = 10.0 if run.site["name"] == "a" else 1000.0
    return {"speed": machine * (1 + x)}


def _campaign(app: Any = slow, metric: str = "value", **more: Any) -> Campaign:
    fields = {"policy": "sobol", "until": {"max_runs": 16}, "batch_size": 8} | more
    return Campaign(app, ha.maximize(metric), name="both", **fields)


def test_a_campaign_runs_on_both_sites_and_the_record_says_where(tmp_path):
    result = ha.run(_campaign(), site=[A, B], run_dir=tmp_path / "r", progress=False)
    counts = Counter(r.site for r in result.results)
    assert (
        set(counts) == {"a", "b"}
        and sum(counts.values()) == 16
        and len({r.manifest.execution_id for r in result.results}) == 16
    )
    assert any("several sites" in remark for remark in result.remarks)
    assert set(read_table(tmp_path / "r" / "metrics.h5")[0]["site"]) == {"a", "b"}
    written = find_profile(tmp_path / "r" / "site.toml")
    assert isinstance(written, Several) and [m.name for m in written.members] == ["a", "b"]
    again = ha.run(_campaign(until={"max_runs": 20}), run_dir=tmp_path / "r", progress=False)  # where it was
    assert len(again.results) == 20 and {r.site for r in again.results} == {"a", "b"}


def test_a_site_that_dies_costs_its_unfinished_runs_another_try_uncharged(tmp_path):
    events: list[str] = []
    begun, over = threading.Event(), threading.Event()

    @ha.app(name="held", parameters={"x": ha.Float(0, 1, default=0.5)}, metrics={"value": "1"})
    def held(x: float, run: Any) -> dict[str, float]:
        if run.site["name"] == "a":
            begun.set()
            over.wait(60)
        return {"value": x}

    with open_site([A, B], run_dir=tmp_path / "s", private=True) as sites:
        lost = sites.members[0].site

        def die() -> None:
            begun.wait(60)
            lost.close()

        threading.Thread(target=die, daemon=True).start()
        result = ha.run(
            _campaign(held, retries=0),
            site=sites,
            run_dir=tmp_path / "r",
            watch=lambda event: events.append(event.reason),
        )
        over.set()
    assert len(result.results) == 16 and all(r.ok for r in result.results)
    assert {r.site for r in result.results[8:]} == {"b"}
    assert any("the site a is lost" in text and "go to b, uncharged" in text for text in events)
    journal = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    assert [e["site"] for e in journal if e["event"] == "site_lost"] == ["a"]
    retried = [e for e in journal if e["event"] == "retry"]
    assert retried and not any(e["charged"] for e in retried)


def test_a_campaign_ends_when_no_site_is_left(tmp_path):
    with open_site([A, B], run_dir=tmp_path / "s", private=True) as sites:
        for member in sites.members:
            member.site.close()
        with pytest.raises(SiteFailed, match=r"No site is left\. a: .*closed.* b: "):
            ha.run(_campaign(), site=sites, run_dir=tmp_path / "r", progress=False)


def test_speeds_of_several_sites_are_refused_without_a_reference(tmp_path):
    with pytest.raises(
        BadInput, match=r"speed is measured, and differ.* between the sites a,b .*name one site, or give"
    ):
        ha.run(_campaign(fast, "speed"), site=[A, B], run_dir=tmp_path / "r", progress=False)
    assert not (tmp_path / "r").exists()


def test_with_a_reference_each_site_has_its_own_and_ratios_are_of_the_same_site(tmp_path):
    campaign = _campaign(
        fast,
        "speed",
        reference={"x": 0.0},
        confirm={"top": 2, "replicates": 2},
        until={"max_runs": 28},
        batch_size=10,
    )
    result = ha.run(campaign, site=[A, B], run_dir=tmp_path / "r", progress=False)
    sites = {r.site for r in result.results if r.manifest.role == "reference"}
    assert sites == {"a", "b"} == {r.site for r in result.results if r.manifest.role == "suggested"}
    assert len({r.site for r in result.results if r.manifest.role == "replicate"}) == 1
    compared = compare(result.campaign, result.results)
    assert compared is not None and compared.sites is not None
    # The machines differ 100-fold; compared, every run gives 1 + x of the site that is shown.
    unit = 10.0 if compared.home == "a" else 1000.0
    for r in result.results:
        shown = r["speed"] * compared.of(r.manifest.batch, r.site)
        assert shown == pytest.approx(unit * (1 + r.manifest.params["x"]))
    assert any(f"shown as on {compared.home}" in remark for remark in result.remarks)


class _Fake:
    """A site that answers when it is told to."""

    def __init__(self, name: str, workers: int, *, up: bool = True, remote: bool = False) -> None:
        self.profile = Profile(name=name, kind="threads").model_copy(
            update={"kind": "globus_compute"} if remote else {}
        )
        self.workers, self.up, self.sent = workers, up, []
        self.offline, self.cancelled = False, []
        self.run_dir = self.work_dir = None
        self.about = {"name": name, "node_cores": 4}

    def place(self, resources, *, estimated_runtime_s=None):
        if resources.ranks_per_node > self.workers:
            raise BadInput("too large")
        return "workers", {}

    def workers_for(self, resources):
        return self.workers

    def longest_s(self, resources):
        return None

    def left_there(self):
        return frozenset()

    def cancel(self, executions):
        self.cancelled += executions


def _spread(*fakes: _Fake, by_reference: bool = False) -> Any:
    from hpcagent.sites.several import Sites

    profile = Several(name=",".join(f.profile.name for f in fakes), kind="local")
    sites = Sites(profile, fakes)  # type: ignore[arg-type]
    turns = Turns()
    return Spread(sites, turns.join(), by_reference=by_reference)


def _lots(spread: Spread, n: int, **of: Any) -> None:
    def send(site: Any, about: Any) -> Future[Any]:
        future: Future[Any] = Future()
        site.sent.append(future)
        return future

    for i in range(n):
        manifest = Manifest(
            execution_id=f"{id(send)}-{i}", app="x", app_version="1.0.0", estimated_runtime_s=60, **of
        )
        spread.add(Lot((manifest,), float(i), send, near=frozenset()))


def _walls(spread: Spread, **of: float) -> None:
    for site, wall_s in of.items():
        spread._recent.on(site).add(wall_s)


def test_runs_wait_until_a_site_has_room_and_a_queue_gets_one_until_it_is_up():
    fast_, queue = _Fake("here", 2), _Fake("queue", 8, up=False)
    spread = _spread(fast_, queue)
    _lots(spread, 10)
    spread.go()
    assert (len(fast_.sent), len(queue.sent)) == (2, 1)
    queue.up = True
    spread.go()
    assert (len(fast_.sent), len(queue.sent)) == (2, 8)


def test_a_slow_site_does_not_end_a_batch_late():
    quick, slowly = _Fake("quick", 2), _Fake("slowly", 2)
    spread = _spread(quick, slowly)
    _walls(spread, quick=10.0, slowly=100.0)
    _lots(spread, 6)
    spread.go()
    assert (len(quick.sent), len(slowly.sent)) == (2, 0)  # three rounds of 10 s are over before one of 100 s
    _lots(spread, 40)
    spread.go()
    assert len(slowly.sent) == 2


def test_what_lies_in_a_queue_is_run_elsewhere_too_and_counts_once():
    here, queue = _Fake("here", 2), _Fake("queue", 8, up=False)
    spread = _spread(here, queue)
    _lots(spread, 3)
    spread.go()
    assert (len(here.sent), len(queue.sent)) == (2, 1)
    for done in here.sent[:2]:
        done.set_result({})
        assert spread.back(done)
    spread.go()
    assert len(here.sent) == 3
    here.sent[2].set_result({})
    queue.sent[0].set_result({})
    assert spread.back(here.sent[2]) and not spread.back(queue.sent[0])


def test_what_an_endpoint_does_not_answer_is_run_elsewhere_after_a_while_and_cancelled_there(monkeypatch):
    here, there = _Fake("here", 2), _Fake("there", 2, up=False, remote=True)
    spread = _spread(here, there)
    _lots(spread, 3)
    spread.go()
    assert (len(here.sent), len(there.sent)) == (2, 1)
    for done in here.sent[:2]:
        done.set_result({})
        assert spread.back(done)
    spread.go()
    assert len(here.sent) == 2  # it may still answer
    monkeypatch.setattr("hpcagent.campaign.spread.PATIENCE_S", 0.0)
    spread.go()
    assert len(here.sent) == 3 and not there.cancelled
    here.sent[2].set_result({})
    assert spread.back(here.sent[2]) and len(there.cancelled) == 1
    there.sent[0].set_result({})
    assert not spread.back(there.sent[0])
    # One that has answered before is waited for, unless it is offline.
    _lots(spread, 4)
    spread.go()
    flying = len(here.sent), len(there.sent)
    assert flying == (5, 3)
    for done in here.sent[3:]:
        done.set_result({})
        assert spread.back(done)
    spread.go()
    assert (len(here.sent), len(there.sent)) == flying
    there.offline = True
    spread.go()
    assert len(here.sent) == 7


def test_an_endpoint_gets_a_reference_first_and_no_run_of_a_confirmation_that_others_are_compared_with():
    here, there = _Fake("here", 2), _Fake("there", 2, up=False, remote=True)
    spread = _spread(here, there, by_reference=True)
    _lots(spread, 2, role="reference", batch=0)
    _lots(spread, 6, role="suggested", batch=0)
    spread.go()
    roles = [
        [lot.first.role for lot, place in spread._flights.values() if place.member.site is s]
        for s in (here, there)
    ]
    assert roles[0].count("reference") == 1 and roles[1][0] == "reference" and len(roles[1]) > 1
    for done in list(spread._flights):
        done.set_result({})
        spread.back(done)
    there.up = False
    for place in spread._places:
        place.answered = place.member.site is here
    spread._lots.clear()
    _lots(spread, 1, role="reference", batch=1)
    _lots(spread, 5, role="replicate", batch=1)
    while spread._lots or spread._flights:
        spread.go()
        assert {place.member.name for _, place in spread._flights.values()} == {"here"}
        for done in list(spread._flights):
            done.set_result({})
            spread.back(done)


def test_a_run_goes_where_it_fits():
    small, large = _Fake("small", 1), _Fake("large", 4)
    spread = _spread(small, large)
    _lots(spread, 2, resources={"ranks_per_node": 4})
    spread.go()
    assert (len(small.sent), len(large.sent)) == (0, 2)


def test_a_run_whose_inputs_lie_on_an_endpoint_that_is_lost_fails_with_that():
    here, there = _Fake("here", 1), _Fake("there", 1)
    spread = _spread(here, there)
    spread._sites.members[1].lost = "it is offline."
    said: list[Exception] = []
    manifest = Manifest(execution_id="i", app="x", app_version="1.0.0")
    spread.add(Lot((manifest,), 0.0, lambda site, about: Future(), refuse=said.append, near=frozenset({"there"})))
    spread.go()
    assert isinstance(said[0], AppFailed) and "there" in str(said[0])


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("laptop,laptop", "laptop is named 2 times"),
        ("laptop,,threads", "has an empty name"),
        ([], "name one site"),
        ("laptop,no-such", "no site profile 'no-such'"),
    ],
)
def test_sites_that_cannot_be_are_refused(site, said):
    with pytest.raises(BadInput, match=said):
        find_profile(site)


def test_what_is_for_one_site_says_so(tmp_path):
    with pytest.raises(BadInput, match=r"inside=True\) is for one site at a time"):
        ha.Coordinator(load_campaign("synthetic"), site=[A, B], run_dir=tmp_path / "r", inside=True)
    with pytest.raises(BadInput, match="`hpcagent submit` is for one site at a time"):
        submit(load_campaign("synthetic"), site="laptop,threads", run_dir=tmp_path / "r")


def test_speeds_of_campaigns_on_different_sites_are_not_compared_in_silence(tmp_path):
    app = ha.app(name="timed", parameters={"x": ha.Float(0, 1)}, metrics={"value": "1", "speed": "1/s"})
    timed = app(lambda x: {"value": x, "speed": 1 + x})
    for site in (A, B):
        campaign = _campaign(timed, "value", until={"max_runs": 4}, batch_size=4)
        ha.run(campaign, site=site, run_dir=tmp_path / site.name, progress=False)
    compared = ha.runs.compare(tmp_path / "a", tmp_path / "b")
    assert compared.settings == {"site": ("a", "b")}
    assert any("speed: measured on different sites (a | b)" in note for note in compared.notes)


def test_several_sites_answer_by_the_words_of_one():
    """What is renamed in `Site` and not here would be looked up in a part of one site, which several do not have."""
    own = {name for name in vars(Sites) if not name.startswith("_")}
    assert own - set(dir(Site)) == {"alive", "failed", "fitting", "none_left", "workers"}
    parts = {
        name: inspect.getsource(value.fget if isinstance(value, property) else value)
        for name, value in vars(Site).items()
        if isinstance(value, property) or inspect.isfunction(value)
    }
    of_its_executors = {name for name, source in parts.items() if "self._executors" in source} - own
    assert {name for name in of_its_executors if not name.startswith("_")} == {
        *("up", "offline", "left_there", "largest"),  # asked of each member
    }
