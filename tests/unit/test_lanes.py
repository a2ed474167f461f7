"""How the tests are run: what needs a cluster says so, and several processes run each test once."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from hpcagent.elsewhere import detach
from tests import in_lanes
from tests.in_lanes import CHECK, LANES, NEEDS, Lane
from tests.timing import LIST, long_ones

FORKED = Path(__file__).resolve().parents[1] / "forked_command.py"

ROOT = Path(__file__).resolve().parents[2]

# As tests/conftest.py does it: the processes of a lane share a folder.
CONFTEST = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})

def pytest_configure(config):
    from tests.sharing import register
    register(config)
"""
TESTS = """
import time
from pathlib import Path
import pytest

RAN = Path(__file__).parent / "ran"

def note(word):
    with RAN.open("a") as file:
        file.write(word + "\\n")

@pytest.fixture(scope="module")
def dear():
    note("made")
    yield
    note("unmade")

@pytest.mark.parametrize("n", range(20))
def test_alone(n):
    note(f"alone {n}")
    time.sleep(0.02)

@pytest.mark.parametrize("n", range(5))
def test_with(dear, n):
    note(f"with {n}")

def test_that_fails_at_first():
    note("tried")
    assert RAN.read_text().splitlines().count("tried") > 1
"""

SHARED = """
import time
from pathlib import Path
import pytest

RAN = Path(__file__).parent / "ran"

@pytest.fixture(scope="module", autouse=True)
def _opened():
    with RAN.open("a") as file:
        file.write("opened\\n")

@pytest.mark.parametrize("n", range(20))
def test_here(n):
    time.sleep(0.02)
"""

COLLECTED = """
import json, sys
import pytest

class Tell:
    def pytest_collection_finish(self, session):
        for item in session.items:
            names = sorted({mark.name for mark in item.iter_markers()})
            print(json.dumps([item.nodeid, names]), file=sys.stderr)

sys.exit(pytest.main(sys.argv[1:], plugins=[Tell()]))
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with tests of its own."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_small.py").write_text(TESTS)
    return tmp_path


def test_several_processes_run_each_test_once_and_what_fails_again_alone(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert in_lanes.main({"small": Lane(("test_small.py",), 3)}, small) == 0
    ran = (small / "ran").read_text().splitlines()
    once = [f"alone {n}" for n in range(20)] + [f"with {n}" for n in range(5)] + ["made", "unmade"]
    assert sorted(ran) == sorted([*once, "tried", "tried"])
    out = capfd.readouterr().out
    assert "failed beside other tests and passed alone" in out and "test_that_fails_at_first" in out


def test_one_that_fails_twice_fails_and_one_that_cannot_be_read_too(small: Path) -> None:
    (small / "test_small.py").write_text("def test_wrong():\n    assert False\n")
    assert in_lanes.main({"small": Lane(("test_small.py",), 2)}, small) == 1
    (small / "test_small.py").write_text("import nothing_of_this_name\n")
    assert in_lanes.main({"small": Lane(("test_small.py",), 2)}, small) == 2


def test_a_late_process_takes_what_is_left_when_another_lane_has_ended(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (small / "test_quick.py").write_text("def test_nothing():\n    pass\n")
    (small / "test_small.py").write_text(TESTS.replace("time.sleep(0.02)", "time.sleep(0.3)"))
    lanes = {"quick": Lane(("test_quick.py",), 1), "small": Lane(("test_small.py",), 1, late=1)}
    assert in_lanes.main(lanes, small) == 0
    out = capfd.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("small 2  |") and " passed" in line]
    ran = (small / "ran").read_text().splitlines()
    assert sorted(set(ran)) == sorted([one for one in ran if one != "tried"] + ["tried"])  # each once


def test_a_process_that_hangs_is_stopped_and_says_where(
    small: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_lanes, "SILENT_S", 15)
    (small / "test_small.py").write_text("import time\n\ndef test_that_hangs():\n    time.sleep(600)\n")
    assert in_lanes.main({"small": Lane(("test_small.py",), 1)}, small) != 0
    out = capfd.readouterr().out
    assert "nothing printed for 15 s: it is stopped by SIGABRT" in out and "in test_that_hangs" in out


def test_what_a_test_leaves_behind_does_not_hold_up_the_end(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    leaves = (
        "import os, time\n\ndef test_it():\n    if not os.fork():\n        time.sleep(20)\n        os._exit(0)\n"
    )
    (small / "test_small.py").write_text(leaves)
    assert in_lanes.main({"small": Lane(("test_small.py",), 1)}, small) == 0
    assert "a process that a test has left holds the output open" in capfd.readouterr().out


def test_what_a_module_opens_for_all_its_tests_is_opened_once(small: Path) -> None:
    (small / "test_small.py").write_text(SHARED)
    assert in_lanes.main({"small": Lane(("test_small.py",), 3)}, small) == 0
    assert (small / "ran").read_text().splitlines() == ["opened"]


def test_all_tests_are_in_one_lane() -> None:
    folders = [folder for lane in LANES.values() for folder in lane.folders]
    assert len(folders) == len(set(folders)) and all((ROOT / folder).is_dir() for folder in folders)
    words = in_lanes.arguments(LANES["rest"], LANES)
    assert words == ["tests", *(f"--ignore={folder}" for folder in folders)]
    assert in_lanes.arguments(CHECK["check"], CHECK)[:2] == ["tests", "-m"]


ORDERED = """
import pytest

@pytest.fixture(scope="module")
def dear():
    pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.slow
@pytest.mark.long
def test_long(): pass

def test_quick(): pass
"""
WITH_A_FIXTURE = """
def test_quick_with(dear): pass

@pytest.mark.slow
def test_slow_with(dear): pass
"""


def test_slow_tests_are_last_long_ones_first_and_what_shares_a_fixture_stays_together(small: Path) -> None:
    (small / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.conftest import order\n"
        "def pytest_collection_modifyitems(items):\n    items.sort(key=order(items))\n"
    )
    (small / "test_a.py").write_text(ORDERED + WITH_A_FIXTURE)
    (small / "test_b.py").write_text(ORDERED)
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "test_a.py", "test_b.py"]
    shown = subprocess.run(words, cwd=small, capture_output=True, text=True, check=False).stdout
    assert [line.partition(".py::test_")[0::2] for line in shown.splitlines() if "::" in line] == [
        *(("test_a", "quick"), ("test_b", "quick")),
        *(("test_a", "long"), ("test_b", "long")),
        *(("test_a", "slow"), ("test_a", "quick_with"), ("test_a", "slow_with"), ("test_b", "slow")),
    ]


def test_the_list_of_long_tests_names_tests_that_are_there_in_order() -> None:
    names = LIST.read_text().splitlines()
    assert names and names == sorted(set(names))
    gone = []
    for name in names:
        path, _, rest = name.partition("::")
        kind, _, function = rest.rpartition("::")  # a class may inherit its tests
        word = f"class {kind}(" if kind else f"def {function}("
        if not (ROOT / path).is_file() or word.removesuffix("(") not in (ROOT / path).read_text():
            gone.append(name)
    assert gone == [], "write the list anew: python tests/in_lanes.py --times"


def test_what_takes_cpu_is_found_by_its_mean_with_its_processes_and_what_waits_is_not(small: Path) -> None:
    (small / "conftest.py").unlink()
    (small / "test_small.py").write_text(
        "import subprocess, sys, time, pytest\n"
        "BUSY = 'import time\\nwhile time.process_time() < 0.6: pass'\n"
        "def test_waits():\n    time.sleep(0.6)\n"
        "def test_starts_one():\n    subprocess.run([sys.executable, '-c', BUSY])\n"
        "@pytest.mark.parametrize('n', [0, 1, 2, 3])\n"
        "def test_rarely(n):\n    exec(BUSY if n == 7 else '')\n"
    )
    code = (
        "import sys; from pathlib import Path; import pytest; from tests.timing import Times; "
        "sys.exit(pytest.main([sys.argv[1]], plugins=[Times(Path(sys.argv[1]))]))"
    )
    subprocess.run([sys.executable, "-c", code, str(small)], cwd=ROOT, check=True)
    assert [name.rpartition("::")[2] for name in long_ones(small)] == ["test_starts_one"]


def test_what_starts_a_cluster_has_its_marker_and_is_slow() -> None:
    words = ["--collect-only", "-qq", "-p", "no:cacheprovider", "tests/slurm", "tests/pbs", "tests/globus"]
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert {name.split("/")[1] for name, _ in found} == {"slurm", "pbs", "globus"} <= set(NEEDS)
    assert [name for name, markers in found if not {"slow", name.split("/")[1]} <= set(markers)] == []


def test_every_need_is_a_marker() -> None:
    words = [sys.executable, "-m", "pytest", "--markers", "-p", "no:cacheprovider", "tests/unit/test_lanes.py"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [need for need in NEEDS if f"@pytest.mark.{need}:" not in told] == []


def test_who_is_killed_while_asking_for_a_process_ends_nobody_elses() -> None:
    for said in (b"", b"\0\0\0", (20).to_bytes(8, "big") + b"{}"):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(detach.started.address)
            line.sendall(said)
    done = subprocess.run(
        [sys.executable, "-IS", str(FORKED), detach.started.address, "hpcagent.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == version("hpcagent")
