"""What endpoints and the service say is told apart by what it means; texts as they really are."""

from __future__ import annotations

import pytest

from hpcagent.errors import SiteFailed
from hpcagent.model.failures import meaning
from hpcagent.sites.endpoint.refusals import Outage, Trouble, of_service, of_task

# (what a task gave, name, kind); the texts are those of globus-compute-endpoint 4.19 and parsl 2026.10.
TEXTS = [
    ("parsl.executors.high_throughput.errors.WorkerLost: Task failure due to loss of worker 0 on host n1",
     "WorkerLost", "infrastructure"),
    ("parsl.executors.high_throughput.errors.ManagerLost: Task failure due to loss of manager b'42'",
     "ManagerLost", "infrastructure"),
    ("MaxResultSizeExceeded(10485761, 10485760)", "MaxResultSizeExceeded", "contract"),
    ("Traceback (most recent call last):\n  File \"x\", line 1, in y\n    raise z\n"
     "parsl.executors.errors.InvalidResourceSpecification: Invalid resource specification options supplied: {'num_nodes'}",
     "InvalidResourceSpecification", "infrastructure"),
    ("Failed to start or unexpected error:\n  (ValidationError) 'abc' is not of type 'integer'",
     "EndpointCannotStart", "infrastructure"),
    ("Traceback (most recent call last):\n  File \"/WorkerLost/schema.py\", line 1\n    WorkerLost()\n"
     "OSError: [Errno 28] No space left on device", "EndpointFailed", "infrastructure"),
    ("parsl.errors.AppTimeout: Task timed out", "Walltime", "infrastructure"),
    ("parsl.providers.errors.SubmitException: Cannot submit job parsl.1 with error: sbatch: error: Invalid account",
     "EndpointCannotStart", "infrastructure"),
    ("", "EndpointFailed", "infrastructure"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name", "kind"), TEXTS)
def test_a_failed_task_has_the_name_of_what_happened(text, name, kind):
    found = of_task(text + "\x1b]0;x\x07" if text else text)
    assert (found.name, found.kind) == (name, kind)
    assert "\x1b" not in found.message + found.log_tail
    if name in ("EndpointCannotStart", "InvalidResourceSpecification", "Walltime"):
        assert not meaning(kind, name).again  # the same again would only fail again
    if name in ("WorkerLost", "ManagerLost", "EndpointFailed"):
        assert meaning(kind, name).again
    assert len(of_task("x" * 10**6 + "\nOSError: y").log_tail) <= 4000


def test_a_schemas_reason_is_told_and_which_tables_to_look_at():
    said = of_task(
        "Failed to start or unexpected error:\n  (ValidationError) 'thread' is not one of ['htex', 'threads']\n\n"
        "Failed validating 'enum' in schema['properties']['engine']:\n    {'enum': ['htex']}\n\n"
        "On instance['engine']:\n    'thread'"
    ).message
    assert "'thread' is not one of ['htex', 'threads']" in said and "[control]" in said


def test_errors_of_ours_in_a_request_are_not_taken_for_the_networks():
    pytest.importorskip("globus_sdk")
    assert type(of_service(ConnectionResetError("x"), "e")) is Outage
    found = of_service(TypeError("a bug"), "e")
    assert "TypeError: a bug" in found.message
    assert not isinstance(found, Outage | SiteFailed)


def test_an_outage_is_told_at_first_then_seldom_and_at_its_end(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("hpcagent.sites.endpoint.refusals.time.monotonic", lambda: now[0])
    told = []
    trouble = Trouble(told.append)
    trouble.over()
    for now[0] in range(1, 700):
        trouble.told(Outage("no net."))
    trouble.over()
    trouble.over()
    assert [words.split(":")[0] for words in told[:3]] == ["no net"] * 3
    assert "5 minutes" in told[1]
    assert len(told) == 4
