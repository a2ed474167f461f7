"""What the doctor says of an endpoint, from one that works to each thing that may be wrong with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcagent.sites import probe
from hpcagent.sites.doctor import examine
from hpcagent.sites.doctor_check import Check
from hpcagent.sites.endpoint_doctor import examine_endpoint
from hpcagent.sites.profile import Profile
from hpcagent.testing.local_link import Faults, LocalLink

ID = "4b116d3c-1703-4f8f-9f6f-39921e5864df"
HERE = probe.versions()
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def endpoint(work_dir: Path | str, **more: Any) -> Profile:
    settings = {"endpoint_id": ID, "work_dir": str(work_dir), "runs_at_once": 2} | more
    return Profile(name="far", kind="globus_compute", **settings)


def checks(profile: Profile, answer: Answer | None = None, **options: Any) -> dict[str, Check]:
    faults = options.pop("faults", None)
    made = [
        *examine_endpoint(
            profile, HERE, link=lambda p, label: LocalLink(p, label, answer=answer, faults=faults), **options
        )
    ]
    assert all(check.todo for check in made if check.status != "ok"), made
    return {check.what: check for check in made}


def played(**told: Any) -> Answer:
    """An endpoint that answers probes so."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        own = {
            "protocol": 1,
            "key": request["key"],
            "host": "n1",
            "python": "3.12.1",
            "hpcagent": HERE["hpcagent"],
        }
        if request["op"] != "probe":
            return own | {"states": {}, "executions": {}, "removed": {}}
        fine = {"versions": {"python": "3.12.1"}, "missing": [], "root": {"writable": True, "free_gb": 100.0}}
        return own | fine | {"at": time.time(), "mpi": {}} | told

    return answer


def test_an_endpoint_that_works_is_found_to_work_and_left_as_it_was(tmp_path: Path) -> None:
    found = checks(endpoint(tmp_path / "there", control={"user_endpoint_config": {"role": "control"}}))
    wrong = {what for what, check in found.items() if check.status == "FAIL"}
    assert not wrong, found
    assert found["executor workers"].found.startswith("on ")
    assert f"hpcagent {HERE['hpcagent']}" in found["executor workers"].found
    assert found["round trip"].found.endswith("the median of 3")
    assert "GB free" in found["work_dir of workers"].found
    assert found["clock of workers"].status == "ok" and found["errands"].status == "ok"
    assert not list((tmp_path / "there").glob("doctor-*"))


def test_an_endpoint_that_is_offline_is_said_at_once_and_nothing_is_sent() -> None:
    begun = time.monotonic()
    found = checks(endpoint("/nowhere"), played(), faults=Faults(offline=True))
    assert time.monotonic() - begun < 20
    assert list(found) == ["endpoint"]
    assert found["endpoint"].status == "FAIL" and "globus-compute-endpoint start" in found["endpoint"].todo


@pytest.mark.parametrize(
    ("told", "what", "status", "words"),
    [
        ({"hpcagent": "0.0.9"}, "executor workers", "warn", "the same on both sides"),
        ({"missing": ["numpy is not installed"]}, "programs of workers", "FAIL", "pip install it there"),
        ({"missing": ["no LAMMPS"]}, "programs of workers", "warn", "[apps.lammps] command"),
        ({"root": {"writable": False, "why": "Read-only"}}, "work_dir of workers", "FAIL", "another work_dir"),
        ({"root": {"writable": True, "free_gb": 0.1}}, "work_dir of workers", "warn", "make room"),
        ({"root": "hostile", "versions": 7, "missing": {}}, "work_dir of workers", "FAIL", "another work_dir"),
        ({"at": 1.0}, "clock of workers", "warn", "times in results"),
        ({"at": "now"}, "clock of workers", "warn", "older hpcagent"),
        ({"error": {"name": "X", "message": "No module named 'hpcagent'"}}, "round trip", "FAIL", "is not there"),
        ({"error": {"name": "OtherProtocol", "message": "protocol 2"}}, "round trip", "FAIL", "the same hpcagent"),
    ],
)
def test_each_thing_that_is_wrong_is_said_with_what_to_do(
    told: dict[str, Any], what: str, status: str, words: str
) -> None:
    answer = played(**told)
    if "error" in told:
        ask = answer
        answer = lambda request: ask({**request, "op": "probe"})  # noqa: E731
    check = checks(endpoint("/nowhere"), answer)[what]
    assert (check.status, words in str(check)) == (status, True), check


def test_without_control_errands_wait_with_the_runs() -> None:
    assert checks(endpoint("/nowhere"), played())["errands"].status == "warn"


def test_an_engine_that_places_no_ranks_is_found() -> None:
    mpi = endpoint("/nowhere", executors={"mpi": {"mode": "mpi"}})
    assert 'role = "mpi"' in checks(mpi, played())["MPI of mpi"].todo
    prefix = {"PARSL_MPI_PREFIX": "mpiexec -n 1\x1b[31m"}
    check = checks(mpi, played(mpi=prefix))["MPI of mpi"]
    assert check.status == "ok" and "\x1b" not in check.found


def test_a_probe_that_no_worker_takes_ends_in_time() -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "probe":
            time.sleep(1.0)
        return played()(request)

    check = checks(endpoint("/nowhere"), answer, within_s=0.2)["executor workers"]
    assert (check.status, check.found) == ("FAIL", "no answer within 0.2 s")


def test_the_doctor_of_sites_says_who_is_not_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOBUS_COMPUTE_CLIENT_ID", ID)
    monkeypatch.delenv("GLOBUS_COMPUTE_CLIENT_SECRET", raising=False)
    found = {check.what: check for check in examine(endpoint("/nowhere"), run_dir=tmp_path / "runs")}
    assert found["Globus login"].status == "FAIL" and "_SECRET" in found["Globus login"].found
    assert "endpoint" not in found and found["run directory"].status == "ok"
