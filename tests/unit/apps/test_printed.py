"""What programs print, and what they write, takes no more disk and memory than is allowed."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcagent.apps.ending import Limit, finish, run_mpi
from hpcagent.apps.launch import planned
from hpcagent.apps.printed import Printed, read_head, read_tail, read_text, reading
from hpcagent.apps.run import Run, noted, noting
from hpcagent.apps.worker import execute
from hpcagent.errors import AppFailed
from hpcagent.science.engines.isolated import FAILURE_MODES
from hpcagent.science.lammps.restart import read_logs

# Prints numbered lines of 100 bytes, so that what is kept can be told.
COUNTED = "import sys\nfor i in range({n}): sys.stdout.write(f'{{i:099d}}\\n')"
LEFT_OUT = re.compile(
    r"\n\[\.\.\. ([\d,]+) bytes are left out here: max_output_mb = ([\d.]+) in the site profile \.\.\.\]\n"
)


def run_of(folder: Path, **site: float) -> Run:
    return Run(workdir=folder, site=site)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_of_what_a_program_prints_the_first_part_and_the_end_are_kept_and_the_run_says_so(tmp_path: Path) -> None:
    with noting():
        done = run_mpi(run_of(tmp_path, max_output_mb=0.1), python(COUNTED.format(n=5000)))
        said = noted()
    cut = LEFT_OUT.search(done.stdout)
    assert cut is not None and cut[2] == "0.1"
    head, tail = done.stdout[: cut.start()], done.stdout[cut.end() :]
    # 500 000 bytes printed, 100 000 kept.
    assert int(cut[1].replace(",", "")) == 400_000 == 500_000 - len(head) - len(tail)
    assert head.splitlines()[499] == f"{499:099d}" and tail.splitlines()[-1] == f"{4999:099d}"
    assert (tmp_path / "output.txt").stat().st_size < 100_200
    assert said == (
        "400,000 of the 500,000 bytes that python printed are left out of output.txt, before its end "
        "(max_output_mb = 0.1 in the site profile)".replace("python", Path(sys.executable).name),
    )


def test_what_fits_is_kept_to_the_byte_and_nothing_is_said(tmp_path: Path) -> None:
    with noting():
        done = run_mpi(run_of(tmp_path, max_output_mb=0.1), python(COUNTED.format(n=1000)))
        assert noted() == ()
    assert done.stdout.splitlines() == [f"{i:099d}" for i in range(1000)]


def test_two_gigabytes_and_a_line_without_an_end_stay_small_in_memory_and_on_disk(tmp_path: Path) -> None:
    code = (
        "import re; from pathlib import Path; from hpcagent.apps.ending import run_mpi; "
        "from hpcagent.apps.run import Run\n"
        "words = ['head', '-c', '2000000000', '/dev/zero']\n"
        f"done = run_mpi(Run(workdir=Path({str(tmp_path)!r}), site={{'max_output_mb': 10}}), words)\n"
        "print(len(done.stdout), re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    length, resident_kb = map(int, found.stdout.split())
    assert length < 10_000_200
    assert resident_kb < 150_000  # all of it in memory: 6.5 GB
    assert (tmp_path / "output.txt").stat().st_size < 10_000_200


def test_what_a_function_of_a_campaign_cut_stands_in_its_result(tmp_path: Path) -> None:
    order = {
        "manifest": {
            "execution_id": "x",
            "seed": 0,
            "replicate": 0,
            "params": {},
            "resources": {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1},
        },
        "function": _talks,
        "settings": {},
        "workdir": str(tmp_path / "x"),
        "promises": {},
        "site": {"max_output_mb": 0.01},
    }
    fields = execute(order)
    assert fields["metrics"] == {"code": 0.0}
    assert [n for n in fields["notes"] if "max_output_mb = 0.01 in the site profile" in n]
    assert noted() == ()


def _talks(run: Run) -> dict[str, float]:
    return {"code": float(run_mpi(run, python(COUNTED.format(n=1000))).returncode)}


def test_nobody_who_holds_the_pipe_is_waited_for_where_something_is_in_it_at_the_end(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb", buffering=0) as file:
        with Printed(file, most=1000) as printed:
            held = os.dup(printed.end)
            late = threading.Timer(30.0, os.close, [held])
            late.start()
            os.write(held, b"done")
            os.write(printed._wake, b"e")  # the end is known before anything is read
            printed.begin()
        assert late.is_alive()
        late.cancel()
        os.close(held)
    assert (tmp_path / "out").read_bytes() == b"done"


def test_who_holds_the_output_after_the_end_is_not_waited_for(tmp_path: Path) -> None:
    # The daemon has left the process group and prints on for 40 s, if it can: always at the end of the program, too.
    daemon = "setsid sh -c 'for i in $(seq 4000); do echo again || exit; sleep 0.01; done' & sleep 0.2; echo done"
    began = time.monotonic()
    done = run_mpi(run_of(tmp_path), ["sh", "-c", daemon])
    assert "done" in done.stdout
    assert time.monotonic() - began < 30


def test_a_program_that_is_stopped_may_still_say_more_than_a_pipe_holds(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_): sys.stdout.write('x' * 1000000 + 'said'); sys.stdout.flush(); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(60)"
    )
    limit = Limit(1.5, "walltime")
    launch = planned(run_of(tmp_path), python(code))
    finished = finish(launch, cwd=tmp_path, output=tmp_path / "output.txt", limit=limit)
    assert (finished.returncode, finished.stopped) == (3, limit)
    assert read_tail(tmp_path / "output.txt", 4) == "said"


def test_a_full_disk_under_the_output_is_an_error_and_no_silence(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        run_mpi(run_of(tmp_path), python(COUNTED.format(n=2000)), output="full")


def children_of_this_process() -> set[str]:
    """Their process ids, ended and not waited for among them; other tests may have left some."""
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


@pytest.mark.slow
def test_no_descriptor_no_thread_and_no_zombie_is_left(tmp_path: Path) -> None:
    import threading

    run = run_of(tmp_path)
    run_mpi(run, ["true"])
    before = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    children = children_of_this_process()
    for _ in range(20):
        run_mpi(run, ["true"])
        with pytest.raises(AppFailed):
            run_mpi(run, ["/no/such/program"])
    assert (len(list(Path("/proc/self/fd").iterdir())), threading.active_count()) == before
    assert children_of_this_process() <= children


def test_a_log_that_is_too_large_is_refused_with_its_end_and_kept(tmp_path: Path) -> None:
    log = tmp_path / "log.lammps"
    with log.open("wb") as file:
        file.truncate(3_000_000_000)  # a line of 3 GB without an end
        file.seek(0, os.SEEK_END)
        file.write(b"the last words")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        reading({"max_read_mb": 2.5}),
        pytest.raises(AppFailed, match=r"3000 MB, more than the 2\.5 MB") as raised,
    ):
        read_logs(tmp_path, [])
    assert raised.value.details["name"] == "FileTooLarge" in FAILURE_MODES
    assert raised.value.details["log_tail"].endswith("the last words")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
    assert log.is_file()


def test_head_tail_and_text_of_a_file_are_as_python_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("erste\r\nzweite \u00fc\rdritte\n".encode() + b"\xff")
    assert read_text(path) == path.read_text(errors="replace") == "erste\nzweite \u00fc\ndritte\n\ufffd"
    assert (read_head(path, 5), read_tail(path, 2)) == ("erste", "\n\ufffd")
    assert (read_head(tmp_path / "none"), read_tail(tmp_path / "none")) == ("", "")
