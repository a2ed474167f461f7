"""The gate: every check refuses with the field, the value, what is allowed and what to do; approvals hold once."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from hpcagent.errors import BadInput
from hpcagent.gate.accounts import Accounts
from hpcagent.gate.approvals import Approvals
from hpcagent.gate.gate import Gate
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request
from hpcagent.gate.rules import Caller, Rules
from hpcagent.model.base import build


class Bench:
    """A gate whose clock and journal are at hand."""

    def __init__(self, tiers: dict[str, str] | None = None, **rules: Any) -> None:
        self.now = 1000.0
        self.events: list[dict[str, Any]] = []
        self.rules = build(Rules, rules, where="the rules")
        self.approvals = Approvals(
            self.events.append, clock=lambda: self.now, expires_s=self.rules.approval_expires_s
        )
        self.accounts = Accounts()
        self.gate = Gate(
            self.rules,
            self.approvals,
            self.accounts,
            clock=lambda: self.now,
            record=self.events.append,
            tiers=lambda: tiers or {},
        )


def request(**more: Any) -> Request:
    return Request(
        **{"app": "synthetic", "version": "1.0.0", "work": "w1", "site": "laptop", "node_hours": 1.0} | more
    )


ADA = Caller(name="ada", role="planner")
EVE = Caller(name="eve", role="viewer")
BOSS = Caller(name="boss", role="admin")


def refused(bench: Bench, asked: Request, caller: Caller = ADA) -> NotAllowed:
    with pytest.raises(NotAllowed) as caught:
        bench.gate.admit(asked, caller)
    return caught.value


def test_without_rules_a_planner_runs_and_a_viewer_does_not():
    bench = Bench()
    assert bench.gate.admit(request(), ADA).approval is None
    error = refused(bench, request(), EVE)
    assert (error.check, error.field, error.value) == ("caller", "role", "viewer")
    assert "planner" in error.allowed and error.do
    assert bench.events[-1] | {"at": 0} == {
        "event": "refused",
        "by": "eve",
        "role": "viewer",
        "at": 0,
        "app": "synthetic",
        "digest": request().digest,
        **error.plain(),
    }


def test_a_role_has_apps_and_sites():
    bench = Bench(
        roles={"student": {"may": ["run"], "apps": ["lj_*"], "sites": ["laptop"]}},
        sites={"laptop": {}, "cluster": {}},
    )
    student = Caller(name="bob", role="student")
    assert bench.gate.admit(request(app="lj_argon"), student)
    assert (refused(bench, request(), student).field, refused(bench, request(), student).allowed) == (
        "app",
        "lj_*",
    )
    assert refused(bench, request(app="lj_argon", site="cluster"), student).field == "site"
    assert refused(bench, request(site="moon"), ADA).allowed == "laptop, cluster"


def test_a_role_that_nobody_knows_may_nothing():
    assert refused(Bench(), request(), Caller(name="x", role="ghost")).check == "caller"


@pytest.mark.parametrize(
    ("rule", "asked", "why"),
    [
        ({"nodes_times_hours": 10}, {"node_hours": 11.0}, "it takes 11 node-hours at most, above 10"),
        ({"nodes_times_hours": 10}, {"node_hours": None}, "without a bound of node-hours"),
        ({"usd": 5}, {"usd": 6.0, "priced": True}, "it takes 6 USD at most, above 5"),
        ({"usd": 5}, {"usd": None, "priced": True}, "without a bound of USD"),
        ({"app": "syn*"}, {}, "it is a run of synthetic"),
        (
            {"effects": ["reads the network"]},
            {"effects": ("reads the network", "writes outside its folder")},
            "its side effects: reads the network",
        ),
        ({"own": True}, {"own": True}, "it is code of somebody's own"),
        ({"roles": ["planner"]}, {}, "planner asks for it"),
        ({"because": "audit"}, {}, "audit"),
    ],
)
def test_a_rule_asks_for_an_approval_and_says_why(rule, asked, why):
    error = refused(Bench(approval=[rule]), request(**asked))
    assert error.check == "approval" and why in str(error) and error.approval in error.do


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        ({"nodes_times_hours": 10}, {"node_hours": 10.0}),
        ({"usd": 5}, {"usd": 5.0, "priced": True}),
        ({"usd": 5}, {"usd": None}),
        ({"app": "lj_*"}, {}),
        ({"effects": ["reads the network"]}, {}),
        ({"own": True}, {}),
        ({"roles": ["executor"]}, {}),
        ({"app": "syn*", "nodes_times_hours": 10}, {"node_hours": 1.0}),
    ],
)
def test_what_a_rule_does_not_meet_needs_no_approval(rule, asked):
    assert Bench(approval=[rule]).gate.admit(request(**asked), ADA).approval is None


def test_an_approval_holds_once_for_that_very_request_of_that_caller():
    bench = Bench(approval=[{"app": "*"}])
    asked = request()
    identity = refused(bench, asked).approval
    assert refused(bench, asked).approval == identity  # not a second one
    bench.approvals.decide(identity, grant=True, by="boss")
    assert refused(bench, request(node_hours=2.0)).approval != identity
    assert refused(bench, asked, Caller(name="bob", role="planner")).approval != identity
    admission = bench.gate.admit(asked, ADA)
    assert admission.approval is not None and admission.approval.id == identity
    bench.approvals.replay(bench.approvals.used(admission.approval, "r-1"))
    assert bench.approvals.get(identity).state == "used"
    assert refused(bench, asked).approval != identity


def test_an_approval_expires_whether_granted_or_not():
    bench = Bench(approval=[{"app": "*"}], approval_expires_s=60)
    first = refused(bench, request()).approval
    bench.now += 61
    assert bench.approvals.get(first).state == "expired"
    with pytest.raises(BadInput, match="is expired"):
        bench.approvals.decide(first, grant=True, by="boss")
    second = refused(bench, request()).approval
    bench.approvals.decide(second, grant=True, by="boss")
    bench.now += 61
    assert refused(bench, request()).approval not in (first, second)


def test_a_denial_holds_and_says_who_and_why():
    bench = Bench(approval=[{"app": "*"}])
    identity = refused(bench, request()).approval
    bench.approvals.decide(identity, grant=False, by="boss", note="too dear")
    assert "boss has denied it: too dear" in str(refused(bench, request()))
    with pytest.raises(BadInput, match="is denied"):
        bench.approvals.decide(identity, grant=True, by="boss")


def test_approvals_are_what_their_journal_says():
    bench = Bench(approval=[{"app": "*"}])
    one = refused(bench, request()).approval
    other = refused(bench, request(work="w2")).approval
    bench.approvals.decide(one, grant=True, by="boss", note="go")
    again = Approvals(bench.events.append, clock=lambda: bench.now, expires_s=1e6)
    for event in [e for e in bench.events if e["event"].startswith("approval_")]:
        again.replay(event)
    assert again.list() == bench.approvals.list()
    assert {a.id: a.state for a in again.list()} == {one: "granted", other: "pending"}


def test_node_hours_are_committed_before_and_reconciled_after():
    bench = Bench(quota={"node_hours": 10})
    bench.accounts.commit("ada", "r-1", 6.0, 0.0, bench.now)
    error = refused(bench, request(node_hours=5.0))
    assert (error.check, error.field, error.value, error.allowed) == (
        "quota",
        "node_hours",
        5.0,
        "at most 4 node-hours",
    )
    bench.accounts.settle("ada", "r-1", 1.5, 0.0)
    assert bench.gate.admit(request(node_hours=8.5), ADA)
    assert refused(bench, request(node_hours=8.6)).allowed == "at most 8.5 node-hours"
    assert refused(bench, request(node_hours=None)).field == "walltime_s"
    assert refused(bench, request(kind="campaign", node_hours=None)).field == "until.node_hours"


def test_quotas_count_what_is_charged_and_rules_of_approval_whole_nodes():
    bench = Bench(quota={"node_hours": 1}, approval=[{"nodes_times_hours": 1.5}])
    half = request(node_hours=2.0, share=0.5)
    error = refused(bench, half)
    assert error.check == "approval" and "it takes 2 node-hours of whole nodes at most, above 1.5" in error.why
    assert "at most 1 node-hours" in half.words()
    assert refused(bench, request(node_hours=2.0)).check == "quota"
    with bench.gate.at_most(0.9):
        assert refused(bench, request(node_hours=2.0, share=0.5)).value == 1.0
    assert half.digest == request(node_hours=2.0).digest  # which an older version has approved


def test_quotas_of_a_person_count_that_person_only():
    bench = Bench(people={"ada": {"role": "planner", "quota": {"runs_at_once": 1, "usd": 2.0}}})
    bench.accounts.commit("bob", "r-0", 0.0, 0.0, bench.now)
    assert bench.gate.admit(request(usd=2.0, priced=True), ADA)
    assert refused(bench, request(usd=2.1, priced=True)).field == "usd"
    bench.accounts.commit("ada", "r-1", 0.0, 0.0, bench.now)
    assert refused(bench, request()).field == "runs_at_once"
    bench.accounts.settle("ada", "r-1", 0.0, 0.0)
    assert bench.gate.admit(request(), ADA)


def test_submissions_within_a_minute_are_counted_and_the_wait_is_said():
    bench = Bench(quota={"per_minute": 2})
    for i in range(2):
        bench.accounts.commit("ada", f"r-{i}", 0.0, 0.0, bench.now)
        bench.now += 10
    assert "ask again in 40 s" in str(refused(bench, request()))
    bench.now += 40
    assert bench.gate.admit(request(), ADA)


def test_bytes_of_runs_are_a_quota():
    bench = Bench(quota={"gigabytes": 1})
    bench.accounts.settle("ada", "r", 0.0, 0.0, 1_000_000_001)
    assert refused(bench, request()).field == "gigabytes"


def test_a_sandbox_that_is_not_to_be_had_is_no_lower_one():
    bench = Bench({"limits": "", "bubblewrap": "bwrap is not installed"}, require_sandbox="bubblewrap")
    error = refused(bench, request(own=True, sandbox="bubblewrap"))
    assert error.check == "sandbox" and "bwrap is not installed" in str(error)
    assert bench.gate.admit(request(own=False), ADA).tier == "none"
    there = Bench({"bubblewrap": ""}, require_sandbox="bubblewrap")
    assert there.gate.admit(request(own=True, sandbox="bubblewrap"), ADA).tier == "bubblewrap"
    for less in ("none", "limits"):
        error = refused(there, request(own=True, sandbox=less))
        assert (error.field, error.value, error.allowed) == ("sandbox", less, "at least bubblewrap")


def test_an_approval_is_not_asked_for_what_is_refused_anyway():
    bench = Bench(quota={"node_hours": 0.5}, approval=[{"app": "*"}])
    assert refused(bench, request()).check == "quota"
    assert not bench.approvals.list()


def test_a_refusal_travels():
    error = NotAllowed("quota", "full", field="usd", value=3.0, allowed="at most 2", do="wait", approval="a-1")
    for copy in (NotAllowed.of(error.plain()), pickle.loads(pickle.dumps(error))):
        assert str(copy) == str(error) and copy.plain() == error.plain()


def test_a_role_of_a_person_is_known():
    with pytest.raises(BadInput, match="there is no role 'chief'; roles: admin, planner, executor, viewer"):
        build(Rules, {"people": {"ada": {"role": "chief"}}}, where="workspace.toml")
