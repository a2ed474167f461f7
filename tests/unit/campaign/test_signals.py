"""SIGTERM and a lost connection end a campaign as Ctrl-C does, in every way in; where SIGHUP is ignored it stays so."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.campaign.signals import Signals, Terminated
from hpcagent.sites.site import _close_on_signals

LONG = ["synthetic", "--site", "threads", "--run-dir", "r", "--no-plots", "--set", "fixed.run_time_s=0.5"]
COMMAND = [sys.executable, "-m", "hpcagent.cli", "run", *LONG, "--set", "until.max_runs=400"]
SCRIPT = """
import hpcagent as ha
campaign = ha.load_campaign("synthetic", changes={"fixed.run_time_s": 0.5, "until.max_runs": 400})
try:
    ha.run(campaign, site="threads", run_dir="r")
except ha.errors.Interrupted as error:
    open("said", "w").write(str(error))
"""


def until(what: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def events(folder: Path) -> list[str]:
    path = folder / "r" / "events.jsonl"
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_until_what_is_being_written_is_whole(number: signal.Signals) -> None:
    signals = Signals()
    before = signal.getsignal(number)
    signals.install()
    try:
        with pytest.raises(Terminated) as caught, signals.held():
            os.kill(os.getpid(), number)
            time.sleep(0)
            whole = True
        assert whole and caught.value.name == number.name
    finally:
        signals.restore()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (1, 2, 0)])
def test_coordinators_that_are_closed_in_any_order_leave_the_handlers_as_they_were(order: tuple[int, ...]) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    several = [Signals() for _ in range(3)]
    for signals in several:
        signals.install()
    for index in order:
        several[index].restore()
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_sighup_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals()
    try:
        signals.install()
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signals.restore()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_script_with_an_open_site_leaves_by_way_of_its_exit(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    put_back = _close_on_signals()
    try:
        assert put_back is not None
        with pytest.raises(SystemExit) as caught:
            os.kill(os.getpid(), number)
            time.sleep(1)
        assert caught.value.code == 128 + number
        put_back()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_campaign_whose_terminal_goes_away_stops_and_can_be_resumed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        COMMAND, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=_be_at_the_terminal,
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    until(lambda: _read(ours) and "results" in events(tmp_path))
    os.close(ours)  # what sshd does when the connection is lost
    assert process.wait(timeout=60) == 130
    assert events(tmp_path)[-1] == "interrupted"


def _be_at_the_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 65536)
    return True


def test_a_script_gets_interrupted_and_says_by_what(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=tmp_path, stderr=subprocess.DEVNULL)
    until(lambda: "results" in events(tmp_path))
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0
    assert (tmp_path / "said").read_text().startswith("stopped by SIGHUP; ")
    assert events(tmp_path)[-1] == "interrupted"


def test_under_nohup_a_campaign_goes_on(tmp_path: Path) -> None:
    runs = [*COMMAND[:-1], "until.max_runs=14"]
    process = subprocess.Popen(
        ["nohup", *runs], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: "results" in events(tmp_path))
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=120) == 0
    assert "stop" in events(tmp_path) and "interrupted" not in events(tmp_path)


def test_a_second_signal_does_not_wait_for_what_the_first_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcagent.campaign.signals._SAME_S", 0.3)
    signals, reached = Signals(), []
    signals.install()
    try:
        with pytest.raises(KeyboardInterrupt), signals.held():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # the same once more, as `timeout` sends it
            reached.append("still writing")
            time.sleep(0.4)
            signal.raise_signal(signal.SIGINT)
            reached.append("not at once")
        with signals.held():
            reached.append("and nothing is left over")
    finally:
        signals.restore()
    assert reached == ["still writing", "and nothing is left over"]


UNCAUGHT = """
import sys
import hpcagent as ha
campaign = ha.load_campaign("synthetic", changes={"fixed.run_time_s": 0.5, "until.max_runs": 400})
if sys.argv[1] == "run":
    ha.run(campaign, site="threads", run_dir="r")
with ha.Coordinator(campaign, site="threads", run_dir="r") as coordinator:
    for batch in coordinator:
        print(batch.number)
"""


@pytest.mark.parametrize(
    ("way", "number", "by"), [("run", signal.SIGINT, "Ctrl-C"), ("loop", signal.SIGTERM, "SIGTERM")]
)
def test_a_script_that_does_not_catch_it_ends_as_the_shell_does(
    tmp_path: Path, way: str, number: signal.Signals, by: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", UNCAUGHT, way],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: "results" in events(tmp_path))
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said
    assert f"stopped by {by}; " in said and "Go on with `hpcagent resume r`." in said.splitlines()[-1]
    # Not on a terminal: `run` has told what is being started, a loop of one's own tells what it wishes.
    assert ("starting threads: " in said) == (way == "run")


def test_an_interruption_while_the_site_starts_says_that_no_run_had_begun(tmp_path: Path) -> None:
    def interrupt(event: ha.types.Event) -> None:
        if event.kind == "starting":
            raise KeyboardInterrupt

    with pytest.raises(
        ha.errors.Interrupted, match="stopped by Ctrl-C while it was being started, before any run"
    ):
        ha.run("synthetic", site="threads", run_dir=tmp_path / "r", watch=interrupt)
    assert ha.run("synthetic", site="threads", run_dir=tmp_path / "r").best is not None  # as it says


def test_the_interchange_never_sees_ctrl_c() -> None:
    with ha.open_site("laptop", private=True) as site:
        child = next(iter(site._executors.values())).interchange_proc.pid
        status = Path(f"/proc/{child}/status").read_text()
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    assert blocked >> (signal.SIGINT - 1) & 1  # proc(5): bit n-1 is signal n
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_interruption_before_the_journal_was_read_counts_no_finished_runs(tmp_path: Path) -> None:
    campaign = ha.load_campaign("synthetic", changes={"until.max_runs": 4, "confirm": None})
    ha.run(campaign, site="threads", run_dir=tmp_path, progress=False)

    def watch(event: ha.types.Event) -> None:
        if event.kind == "starting":
            raise KeyboardInterrupt

    again = ha.Coordinator(campaign, site="threads", run_dir=tmp_path, watch=watch)
    with pytest.raises(KeyboardInterrupt, match=r"; finished runs are kept"), again:
        pass
