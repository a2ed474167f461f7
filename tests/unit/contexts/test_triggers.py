"""Triggers start what rules say, once for each event, also after a crash; loops end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from hpcagent.contexts import Events, Trigger, Triggers, load_triggers
from hpcagent.errors import AppFailed, BadInput, RunDirLocked, StoreFull

RULE = Trigger(
    name="look_closer",
    when="new_promising_catalyst",
    where={"adsorption_energy": {"below": -1.2}},
    then={"tool": "run_dft", "arguments": {"structure": {"from": "inputs.metal"}, "cutoff_eV": 400}},
)


@pytest.fixture
def events(tmp_path):
    return Events(tmp_path / "events")


def promising(events, energy=-1.5, *, owner="ada", **options):
    payload = {"adsorption_energy": energy, "inputs": {"metal": "CuZnO"}}
    return events.tell("new_promising_catalyst", payload, owner=owner, **options)


def hosted(events, rules, start, **options):
    return Triggers(events.folder.parent / "triggers", events, rules, start, owner="ada", **options)


def test_an_event_starts_what_the_rule_says_with_arguments_of_its_payload(events):
    started = []
    with hosted(events, [RULE], lambda job: started.append(job) or "job-1") as triggers:
        promising(events, -1.1)
        n = promising(events, -1.5)
        events.tell("other_event", {"adsorption_energy": -9}, owner="ada")
        promising(events, -1.5, owner="bob")  # not ada's to see
        assert triggers.run_once() == 1 and triggers.run_once() == 0
    (job,) = started
    assert (job.kind, job.name, job.arguments) == ("tool", "run_dft", {"structure": "CuZnO", "cutoff_eV": 400})
    assert (job.event.n, job.trigger, job.owner, job.again) == (n, "look_closer", "ada", False)
    assert job.key == f"look_closer:event-{n}-{job.event.at}" and job.cause == (job.key,)
    (fired,) = triggers.history()
    assert (fired.state, fired.answer, fired.n) == ("started", "job-1", n)


def test_rules_are_read_from_toml(tmp_path, events):
    path = tmp_path / "triggers.toml"
    path.write_text("""
[[triggers]]
name = "look_closer"
when = "new_promising_catalyst"
then = {tool = "run_dft", arguments = {structure = {from = "inputs.metal"}}}

[[triggers]]
name = "tell_me"
when = "new_promising_catalyst"
most_per_minute = 1
then = {prompt = "analyze_trends"}

[[triggers]]
name = "go_on"
when = "new_promising_catalyst"
then = {campaign = "co2_tuning", arguments = {metals = ["Cu", "Zn"], where = {kind = "fcc"}}}
""")
    started = []
    with hosted(events, load_triggers(path), started.append) as triggers:
        promising(events)
        assert triggers.run_once() == 3
    assert [(job.kind, job.name, job.arguments) for job in started] == [
        ("tool", "run_dft", {"structure": "CuZnO"}),
        ("prompt", "analyze_trends", {}),
        ("campaign", "co2_tuning", {"metals": ["Cu", "Zn"], "where": {"kind": "fcc"}}),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "two words"}, "is no identifier"),
        ({"when": "on_job_completed"}, "did you mean 'on_job_complete'"),
        ({"where": {"x": {"under": 1}}}, "'under' is no condition"),
        ({"then": {}}, "got none"),
        ({"then": {"tool": "a", "prompt": "b"}}, "got tool, prompt"),
        ({"then": {"tool": "a", "code": "import os"}}, "unknown key 'code'"),
        ({"then": {"tool": "a", "arguments": {"x": {"from": "a", "plus": 1}}}}, "and nothing else"),
        ({"then": {"tool": "a", "arguments": {"x": {"from": 3}}}}, "and nothing else"),
        ({"then": {"tool": "a", "arguments": {"password": "abcdef"}}}, "by its name it is a secret"),
        ({"most_per_minute": 0}, "greater than or equal to 1"),
        ({"deepest": 21}, "less than or equal to 20"),
        ({"whn": "x"}, "unknown key 'whn'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(change, said, tmp_path):
    with pytest.raises(BadInput, match=said):
        Trigger(**(RULE.model_dump(exclude_defaults=True) | change))


def test_a_toml_with_something_else_or_two_rules_of_one_name_is_refused(tmp_path, events):
    path = tmp_path / "triggers.toml"
    path.write_text("[[trigger]]\nname = 'a'\n")
    with pytest.raises(BadInput, match=r"stand in tables \[\[triggers\]\]"):
        load_triggers(path)
    with pytest.raises(BadInput, match="two triggers have the name 'look_closer'"):
        hosted(events, [RULE, RULE], print)


def test_what_every_user_may_write_starts_nothing(tmp_path, events):
    path = tmp_path / "triggers.toml"
    path.write_text("[[triggers]]\nname = 'a'\nwhen = 'b'\nthen = {tool = 'c'}\n")
    path.chmod(0o666)
    with pytest.raises(BadInput, match="can be written by every user"):
        load_triggers(path)
    promising(events)
    events.log.folder.chmod(0o777)
    with pytest.raises(BadInput, match="and what the triggers start would be run as you"):
        hosted(events, [RULE], print)


def test_a_loop_ends_at_its_depth_and_says_so(events):
    def start(job):
        promising(events, cause=job.cause)  # what it started tells the same event again

    with hosted(events, [RULE], start) as triggers:
        promising(events)
        assert triggers.run_once() == 3
        *before, last = triggers.history()
    assert [fired.state for fired in before] == ["started"] * 3
    assert last.state == "refused" and "number 4 of a chain of triggers, 3 are allowed" in last.reason


def test_a_loop_whose_host_passes_no_cause_ends_at_its_rate(events, monkeypatch):
    rule = RULE.model_copy(update={"most_per_minute": 4})
    with hosted(events, [rule], lambda job: promising(events)) as triggers:
        promising(events)
        assert triggers.run_once() == 4
        assert "4 were started within a minute, 4 are allowed" in triggers.history()[-1].reason
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 61)
        promising(events)
        assert triggers.run_once() == 4  # it was refused for good, and this one is new
    monkeypatch.undo()


def test_the_rate_holds_over_a_restart(events):
    rule = RULE.model_copy(update={"most_per_minute": 2})
    for expected in (2, 0):
        with hosted(events, [rule], lambda job: None, after=0) as triggers:
            for _ in range(3):
                promising(events)
            assert triggers.run_once() == expected


def test_a_field_that_the_event_does_not_have_is_no_argument(events):
    with hosted(events, [RULE], lambda job: None) as triggers:
        events.tell("new_promising_catalyst", {"adsorption_energy": -2}, owner="ada")
        assert triggers.run_once() == 0
        (fired,) = triggers.history()
    assert fired.state == "refused" and "has no field 'inputs.metal'" in fired.reason


def test_an_action_that_fails_is_recorded_and_not_tried_again(events):
    calls = []

    def start(job):
        calls.append(job)
        raise AppFailed("The queue is closed.") if len(calls) == 1 else ValueError("Bearer abcdefghijklmnopqrst")

    with hosted(events, [RULE], start) as triggers:
        promising(events)
        promising(events)
        triggers.run_once()
        assert triggers.run_once() == 0 and len(calls) == 2
        assert [(f.state, f.reason) for f in triggers.history()] == [
            ("failed", "The queue is closed."),
            ("failed", "(hidden: an authorization header)"),
        ]


CRASH = """
import os, sys
from hpcagent.contexts import Events, Triggers, load_triggers
folder, when = sys.argv[1:]
events = Events(folder + "/events")
def start(job):
    if when == "before":
        os._exit(9)
    print(job.key, job.again, file=open(folder + "/carried_out", "a"))
    if when == "after":
        os._exit(9)
    return "job-1"
triggers = Triggers(folder + "/triggers", events, load_triggers(folder + "/triggers.toml"), start, owner="ada", after=0)
triggers.run_once()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_the_action_hands_the_same_key_over_again(tmp_path, events, when):
    (tmp_path / "triggers.toml").write_text(
        "[[triggers]]\nname = 'look_closer'\nwhen = 'new_promising_catalyst'\nthen = {tool = 'run_dft'}\n"
    )
    promising(events, key="a")
    promising(events, key="b")

    def run(word):
        code = subprocess.run(
            [sys.executable, "-c", CRASH, str(tmp_path), word], timeout=120, check=False
        ).returncode
        return code

    assert run(when) == 9
    assert run("no crash") == 0 and run("no crash") == 0
    carried_out = (tmp_path / "carried_out").read_text().splitlines()
    first, second = "look_closer:a", "look_closer:b"
    before = [f"{first} False"] if when == "after" else []
    assert carried_out == [*before, f"{first} True", f"{second} False"]


def test_an_event_that_is_told_twice_with_one_key_starts_once(events):
    started = []
    with hosted(events, [RULE], started.append) as triggers:
        promising(events, key="run-7 promising")
        promising(events, key="run-7 promising")
        assert triggers.run_once() == 1
    assert started[0].key == "look_closer:run-7 promising"


def test_one_process_at_a_time_runs_the_triggers_of_a_folder(events):
    with hosted(events, [RULE], print), pytest.raises(RunDirLocked, match="are run by another process"):
        hosted(events, [RULE], print)
    hosted(events, [RULE], print).close()


def test_nothing_is_started_that_could_not_be_written_down(events, monkeypatch):
    started = []
    with hosted(events, [RULE], started.append) as triggers:
        promising(events)

        def full(held, n, data, *, sync=False):
            raise StoreFull("triggers.jsonl cannot be written: No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("hpcagent.contexts.lines.Held.append", full)
            with pytest.raises(StoreFull):
                triggers.run_once()
        assert started == []
        assert triggers.run_once() == 1 and len(started) == 1


def test_events_that_were_dropped_before_they_were_looked_at_are_named(tmp_path):
    events = Events(tmp_path / "events", keep=20)
    hosted(events, [RULE], print, after=0).close()
    for _ in range(60):
        events.tell("other_event", {}, owner="ada")
    with hosted(events, [RULE], lambda job: None) as triggers:
        triggers.run_once()
        (note,) = triggers.history()
    assert note.state == "refused" and "events were dropped before they were looked at" in note.reason


def test_events_that_are_told_after_a_crash_has_cut_the_log_start_what_the_rule_says(events):
    started = []
    rule = RULE.model_copy(update={"most_per_minute": 100})
    with hosted(events, [rule], started.append) as triggers:
        for _ in range(10):
            promising(events)
        assert triggers.run_once() == 10
    (path,) = events.log.folder.glob("*.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:7]))
    again = Events(events.folder)  # the machine is up again
    with hosted(again, [rule], started.append) as triggers:
        assert triggers.run_once() == 0
        assert "events 8 to 10: a crash" in triggers.history()[-1].reason
        for _ in range(6):
            promising(again)
        assert triggers.run_once() == 6 and triggers.run_once() == 0
    assert [job.event.n for job in started] == [*range(1, 11), *range(8, 14)]
    assert len({job.key for job in started}) == 16


def test_threads_that_look_at_once_start_each_event_once(events):
    started = []
    rule = RULE.model_copy(update={"most_per_minute": 100})
    with hosted(events, [rule], lambda job: (time.sleep(0.01), started.append(job.key))) as triggers:
        for _ in range(10):
            promising(events)
        threads = [threading.Thread(target=triggers.run_once) for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert len(started) == len(set(started)) == 10


def test_it_waits_for_events_and_ends_when_none_come(events):
    started = []
    with hosted(events, [RULE], started.append) as triggers:
        teller = threading.Timer(0.2, lambda: promising(events))
        teller.start()
        assert triggers.run(timeout_s=1.0) == 1
        teller.join()
    assert len(started) == 1
