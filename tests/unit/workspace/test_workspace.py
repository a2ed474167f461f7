"""A workspace: runs and campaigns behind the gate, through the one process that serves it."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcagent.errors import BadInput, NotPermitted, RunDirGone, RunDirLocked, StoreFull
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.model.records import Cost, Result
from hpcagent.sites.site import usable_cores
from hpcagent.store.journal import read_events
from hpcagent.workspace.client import Workspace
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder, find_folder

PATIENCE_S = 120


def rules(folder: Path, text: str) -> None:
    with (folder / "workspace.toml").open("a") as file:
        file.write(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    Folder(folder).create()
    (folder / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n')
    return folder


@pytest.fixture
def core(root: Path) -> Iterator[Core]:
    one = Core(root)
    yield one
    one.close()


@pytest.fixture
def workspace(root: Path) -> Iterator[Workspace]:
    one = Workspace(root)
    yield one
    one.end(runs=True)


def me(core: Core) -> Any:
    return core.caller(os.getuid())


# -- without a service ----------------------------------------------------------------------------


def test_nothing_is_answered_from_a_journal_that_was_replaced(core: Core) -> None:
    core.run(me(core), "synthetic", {"x": 0.3})
    copy = core.folder.journal.with_name("copy")
    copy.write_bytes(core.folder.journal.read_bytes())
    copy.replace(core.folder.journal)  # as editors do, right behind a look at it
    with pytest.raises(RunDirGone, match="not as this service has left it"):
        core.run(me(core), "synthetic", {"x": 0.4})


def test_where_a_workspace_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert find_folder() == tmp_path / ".hpcagent"
    monkeypatch.setenv("HPCAGENT_WORKSPACE", str(tmp_path / "other"))
    assert find_folder() == tmp_path / "other"
    with pytest.raises(BadInput, match=r"is no workspace.*hpcagent workspace init"):
        Workspace()


def test_a_new_workspace_is_private_and_its_template_is_valid(tmp_path):
    folder = Folder(tmp_path / "ws")
    assert folder.create() and not folder.create()
    assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
    assert folder.read_rules().default_site == "laptop"


def test_a_run_is_done_once_and_found_afterwards(core):
    first = core.run(me(core), "synthetic", {"x": 0.3})
    assert core.wait(me(core), first["id"], PATIENCE_S)["metrics"]["value"] == pytest.approx(25.2)
    again = core.run(me(core), "synthetic@1.0.0", {"x": 0.3, "y": 0.8})
    assert again["id"] == first["id"] and again["found"] and not first["found"]
    other = core.run(me(core), "synthetic", {"x": 0.3}, replicate=1)
    assert other["id"] != first["id"]


@pytest.mark.parametrize(
    ("app", "params", "more", "field"),
    [
        ("synthetic", {"x": 7}, {}, "x"),
        ("synthetic", {"x": "much"}, {}, "x"),
        ("synthetic", {"z": 1}, {}, "z"),
        ("synthetic@9.0.0", {}, {}, "app"),
        ("synthetic", {}, {"site": "laptpo"}, "site"),
        ("synthetic", {}, {"label": "run with password=abcd1234"}, "label"),
        ("synthetic", {}, {"label": "\x1b[2J"}, "label"),
        ("synthetic", {}, {"settings": {"colour": "red"}}, "settings"),
        ("synthetic", {}, {"resources": {"nodes": -1}}, "resources"),
        ("nothing_of_the_kind", {}, {}, "app"),
        ("synthetic", {}, {"inputs": ["r-none"]}, None),
    ],
)
def test_what_breaks_the_contract_is_refused_and_written_down(core, app, params, more, field):
    with pytest.raises(BadInput) as caught:
        core.run(me(core), app, params, **more)
    if field is not None:
        assert isinstance(caught.value, NotAllowed)
        assert (caught.value.check, caught.value.field) == ("contract", field)
        assert next(e for e in read_events(core.folder.journal) if e["event"] == "refused")["field"] == field
    assert not core.rows


def test_what_is_not_yours_answers_as_if_it_were_not_there(root):
    rules(root, '[people.ada]\nrole = "planner"\n[people.bob]\nrole = "planner"\n[people.eve]\nrole = "viewer"\n')
    core = Core(root)
    ada, bob, eve = (core.caller(os.getuid(), name) for name in ("ada", "bob", "eve"))
    run = core.run(ada, "synthetic", {"x": 0.3})["id"]
    core.wait(ada, run, PATIENCE_S)
    for call in (
        lambda: core.status(bob, run),
        lambda: core.cancel(bob, run),
        lambda: core.artifacts(bob, run),
        lambda: core.fetch(bob, run, "result.json"),
    ):
        with pytest.raises(BadInput) as there:
            call()
        with pytest.raises(BadInput) as not_there:
            core.status(bob, "r-0")
        assert str(there.value).replace(run, "r-0") == str(not_there.value)
    assert core.listed(bob)["runs"] == [] and len(core.listed(ada)["runs"]) == 1
    assert len(core.listed(me(core))["runs"]) == 1  # an admin sees all
    with pytest.raises(NotAllowed, match="viewer"):
        core.run(eve, "synthetic", {"x": 0.4})
    # The same work for somebody else is an own run with the same result, and is not paid for twice.
    shared = core.run(bob, "synthetic", {"x": 0.3})
    assert shared["id"] != run and core.status(bob, shared["id"])["state"] == "completed"
    assert core.costs(bob)["people"]["bob"]["node_hours"] == 0.0
    core.close()


def test_a_user_or_person_who_is_not_known_is_refused(core):
    with pytest.raises(NotAllowed, match="not known here"):
        core.caller(os.getuid() + 1)
    with pytest.raises(NotAllowed, match="cannot speak for 'ada'"):
        core.caller(os.getuid(), "ada")


def test_nobody_but_an_admin_grants_what_they_have_asked_for(root):
    rules(
        root,
        '[people.ada]\nrole = "lead"\n[people.bob]\nrole = "lead"\n[roles.lead]\nmay = ["run", "approve"]\n'
        '[[approval]]\napp = "*"\n',
    )
    core = Core(root)
    ada, bob = core.caller(os.getuid(), "ada"), core.caller(os.getuid(), "bob")
    with pytest.raises(NotAllowed) as asked:
        core.run(ada, "synthetic", {"x": 0.3})
    with pytest.raises(NotAllowed, match="nobody grants what they have asked for"):
        core.decide(ada, asked.value.approval, grant=True)
    core.decide(bob, asked.value.approval, grant=True, note="fine")
    run = core.run(ada, "synthetic", {"x": 0.3})["id"]
    assert core.wait(ada, run, PATIENCE_S)["approval"] == asked.value.approval
    with pytest.raises(NotAllowed):
        core.run(ada, "synthetic", {"x": 0.3}, replicate=1)  # it was for that one run
    core.close()


def test_a_waiting_run_is_cancelled_before_it_begins_and_a_running_one_is_ended(root):
    rules(root, "[sites.one]\nprofile = 'laptop'\n")
    core = Core(root)
    who = me(core)
    runs = [core.run(who, "synthetic", {"x": 0.1 + i / 100}, site="one", seed=i)["id"] for i in range(3)]
    for run in runs:
        core.wait(who, run, PATIENCE_S)
    long = [
        core.run(who, "synthetic", {"x": 0.5 + i / 100, "run_time_s": 10.0}, site="one")["id"] for i in range(12)
    ]
    last = core.cancel(who, long[-1])
    assert last["state"] == "cancelled" and last["how"] == "it had not begun"
    until = time.monotonic() + PATIENCE_S
    folder = core.folder.work / core.rows[long[0]].execution_id
    while not (folder / "manifest.json").exists() and time.monotonic() < until:
        time.sleep(0.05)
    began = time.monotonic()
    assert core.cancel(who, long[0])["how"] == "its worker is ended"
    assert core.cancel(who, long[0])["state"] == "cancelled"  # again: nothing
    for run in long[1:-1]:
        core.cancel(who, run)
    assert Counter(row["state"] for row in core.listed(who)["runs"]) == {"completed": 3, "cancelled": 12}
    core.close()
    assert time.monotonic() - began < PATIENCE_S


def test_files_of_a_run_are_read_below_its_folder_only(core):
    run = core.run(me(core), "synthetic", {"x": 0.3})["id"]
    core.wait(me(core), run, PATIENCE_S)
    folder = core.folder.work / core.rows[run].execution_id
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "away").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    (folder / "sub" / "data").write_bytes(bytes(range(10)))
    found = core.fetch(me(core), run, "sub/data", offset=8, length=100)
    assert (found["bytes"], found["next"], found["data"]) == (10, None, "CAk=")
    assert core.fetch(me(core), run, "sub/data", offset=0, length=4)["next"] == 4
    for path in (
        "link",
        "away/passwd",
        "pipe",
        "sub",
        "../x",
        "sub/../sub/data",
        "/etc/passwd",
        "",
        "a\nb",
        "sub//data",
        "sub\\data",
        "none",
    ):
        with pytest.raises(BadInput):
            core.fetch(me(core), run, path)
    for offset, length in ((-1, 1), (0, -1), (0, 1 << 30)):
        with pytest.raises(BadInput, match="offset is 0 or more"):
            core.fetch(me(core), run, "sub/data", offset=offset, length=length)
    assert {f["path"] for f in core.artifacts(me(core), run)} == {"manifest.json", "result.json", "sub/data"}
    assert [f["path"] for f in core.artifacts(me(core), run, below="sub")] == ["sub/data"]
    assert core.artifacts(me(core), run, below="none") == core.artifacts(me(core), run, below="away") == []
    assert core.artifacts(me(core), run, below="a" * 300) == []
    assert core.artifacts(me(core), run, below="sub/") == core.artifacts(me(core), run, below="sub")
    for below in ("..", "/etc", "sub/..", "sub//data", None, 7):
        with pytest.raises(BadInput):
            core.artifacts(me(core), run, below=below)


def test_a_file_of_an_earlier_run_is_an_input_by_its_name(core):
    run = core.run(me(core), "synthetic", {"x": 0.3})["id"]
    core.wait(me(core), run, PATIENCE_S)
    path = core._file_of(me(core), f"artifact:{run}/result.json")
    assert json.loads(Path(path).read_text())["metrics"]
    with pytest.raises(BadInput):
        core._file_of(me(core), f"artifact:{run}/none")
    with pytest.raises(BadInput):
        core._file_of(me(core), "artifact:r-0/result.json")


def test_a_second_service_refuses_to_start(core, root):
    with pytest.raises(RunDirLocked, match="is served by another process"):
        Core(root)


def test_a_damaged_journal_line_costs_that_line_only(root):
    core = Core(root)
    ids = [core.run(me(core), "synthetic", {"x": 0.1 + i / 10})["id"] for i in range(3)]
    for run in ids:
        core.wait(me(core), run, PATIENCE_S)
    core.close()
    lines = (root / "journal.jsonl").read_bytes().splitlines(keepends=True)
    lines[1] = lines[1][:40] + b"\n"
    (root / "journal.jsonl").write_bytes(b"".join(lines) + b'{"event":"ended","id":"r-')
    core = Core(root)
    assert core.damaged >= 1 and len(core.rows) >= 2
    assert core.about()["damaged_lines"] == core.damaged
    core.close()


def test_estimates_are_of_runs_on_record_and_say_what_the_gate_would(root):
    rules(root, "[[approval]]\nnodes_times_hours = 1000\n[sites.threads]\nusd_per_node_hour = 2.0\n")
    core = Core(root)
    before = core.estimate(me(core), "synthetic", {"x": 0.3})
    assert before["from"] == "the contract's estimate" and before["known"] is None
    assert "without a bound" in before["approval"] and before["node_hours_at_most"] is None
    assert not core.rows
    core.close()


# -- the service ----------------------------------------------------------------------------------


def test_the_service_starts_by_itself_and_only_its_owner_can_speak_to_it(workspace, root):
    assert workspace.about()["name"] == "ws"
    about = json.loads((root / "service.json").read_text())
    for path in (Path(about["socket"]), root / "service.json", root / "service.log"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    run = workspace.run("synthetic", {"x": 0.3}, why="a test")
    assert workspace.wait(run["id"], PATIENCE_S)["state"] == "completed"
    with pytest.raises(NotAllowed) as error:
        workspace.run("synthetic", {"x": 7})
    assert (error.value.field, error.value.value) == ("x", 7)
    with pytest.raises(BadInput, match="there is no run"):
        workspace.status("r-0")


def test_a_socket_that_others_may_use_is_refused(workspace, root):
    workspace.about()
    place = Path(json.loads((root / "service.json").read_text())["socket"])
    place.chmod(0o666)
    with pytest.raises(BadInput, match="has to be yours with mode 600"):
        Workspace(root).about()
    place.chmod(0o600)


def test_a_service_on_another_machine_is_named(workspace, root):
    workspace.about()
    about = json.loads((root / "service.json").read_text())
    (root / "service.json").write_text(json.dumps(about | {"host": "login7"}))
    with pytest.raises(BadInput, match="runs on login7"):
        Workspace(root).about()
    (root / "service.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"\xff\xfe\n",
        b'{"do":"no"}\n',
        b'{"do":"run","args":{"a":1}}\n',
        b"{" * 9000 + b"\n",
        b'{"do":"run","args":{"app":"syn\\ud800","params":{}}}\n',
        b'{"do":"run","args":{"app":"synthetic","params":{"x":' + b"[" * 500 + b"]" * 500 + b"}}}\n",
    ],
)
def test_a_request_that_is_none_gets_one_clear_error(workspace, root, line):
    workspace.about()
    place = json.loads((root / "service.json").read_text())["socket"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.connect(place)
        one.sendall(line)
        answer = json.loads(one.makefile("rb").readline())
    assert answer["error"]["message"] and "Traceback" not in answer["error"]["message"]
    assert workspace.about()["name"] == "ws"


def test_a_hundred_clients_at_once_are_answered(workspace, root):
    workspace.about()
    found: list[str] = []
    errors: list[BaseException] = []

    def ask(i: int) -> None:
        try:
            mine = Workspace(root)
            run = mine.run("synthetic", {"x": 0.1 + (i % 50) / 100})
            found.append(mine.wait(run["id"], PATIENCE_S)["state"])
            mine.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and Counter(found) == {"completed": 100}
    assert len(workspace.list(most=1000)["runs"]) == 50


def test_pages_of_a_list_have_every_run_once(workspace):
    ids = [workspace.run("synthetic", {"x": 0.1 + i / 100})["id"] for i in range(7)]
    seen: list[str] = []
    after = ""
    while after is not None:
        page = workspace.list(most=3, after=after)
        seen += [row["id"] for row in page["runs"]]
        after = page["after"]
    assert seen == ids[::-1]


def test_kills_at_random_moments_lose_and_repeat_nothing(root):
    """What was acknowledged is done in the end, each work once, and an approval is used once."""
    rules(root, '[[approval]]\napp = "synthetic"\n')
    random.seed(7)
    workspace = Workspace(root)
    acknowledged: dict[str, float] = {}
    for _ in range(20):
        pid = workspace.about()["pid"]
        timer = threading.Timer(random.uniform(0.0, 0.15), os.kill, (pid, signal.SIGKILL))
        timer.start()
        for _ in range(3):
            x = round(random.uniform(0.05, 0.95), 6)
            try:
                workspace.run("synthetic", {"x": x})
            except NotAllowed as error:
                workspace.grant(error.approval)
                acknowledged[workspace.run("synthetic", {"x": x})["id"]] = x
        timer.join()
        timer.cancel()
    for run, x in acknowledged.items():
        status = workspace.wait(run, PATIENCE_S)
        assert (status["state"], status["params"]["x"]) == ("completed", x)
    events = list(read_events(root / "journal.jsonl"))
    assert max(Counter(e["id"] for e in events if e["event"] == "ended").values()) == 1
    assert max(Counter(e["work"] for e in events if e["event"] == "asked").values()) == 1
    assert max(Counter(e["id"] for e in events if e["event"] == "approval_used").values()) == 1
    assert len({e["id"] for e in events if e["event"] == "asked"}) == len(acknowledged) == 60
    workspace.end(runs=True)


WRITES = """
import os
import time

import hpcagent as ha


@ha.app(parameters={"n": ha.Int(0, 99)}, metrics={"y": "1"}, side_effects="writes outside its folder")
def writes(n):
    with open(FILE, "a") as file:
        file.write(f"{n}\\n")
    time.sleep(0.05)
    return {"y": n}
"""


def test_kills_of_the_service_repeat_no_run_that_goes(root, tmp_path, monkeypatch):
    """Each run adds a line to a file: it is there once, however often the service was killed under it."""
    written = tmp_path / "written.txt"
    (tmp_path / "writes_17.py").write_text(WRITES.replace("FILE", repr(str(written))))
    monkeypatch.syspath_prepend(str(tmp_path))
    from writes_17 import writes  # type: ignore[import-not-found]

    random.seed(3)
    workspace = Workspace(root)
    runs: dict[str, int] = {}
    for kill in range(6):
        pid = workspace.about()["pid"]
        timer = threading.Timer(random.uniform(0.1, 0.4), os.kill, (pid, signal.SIGKILL))
        timer.start()
        for n in range(4 * kill, 4 * kill + 4):
            runs[workspace.run(writes, {"n": n})["id"]] = n
        timer.join()
    for run, n in runs.items():
        assert workspace.wait(run, PATIENCE_S)["metrics"] == {"y": n}
    assert sorted(map(int, written.read_text().split())) == list(range(24))
    workspace.end(runs=True)
    sys.modules.pop("writes_17", None)


def test_a_run_goes_on_while_there_is_no_service_and_is_done_once(root, tmp_path):
    workspace = Workspace(root)
    run = workspace.run("synthetic", {"x": 0.3, "run_time_s": 3.0}, site="laptop")["id"]
    place = root / "work" / workspace.status(run)["execution_id"]
    until = time.monotonic() + PATIENCE_S
    while not (place / "manifest.json").exists() and time.monotonic() < until:
        time.sleep(0.05)
    began = (place / "manifest.json").stat().st_mtime_ns
    os.kill(workspace.about()["pid"], signal.SIGKILL)
    while not (place / "result.json").exists() and time.monotonic() < until:
        time.sleep(0.05)  # nobody has started a service
    assert workspace.wait(run, PATIENCE_S)["state"] == "completed"
    assert (place / "manifest.json").stat().st_mtime_ns == began
    workspace.end(runs=True)


FN = """
import hpcagent as ha


@ha.app(parameters={"n": ha.Int(1, 9)}, metrics={"y": "1"})
def power(n):
    return {"y": n ** POWER}
"""
ASK = """
import sys
import hpcagent as ha
from fn import power

workspace = ha.Workspace(sys.argv[1])
print(workspace.wait(workspace.run(power, {"n": 4}, site=sys.argv[2])["id"], 120)["metrics"]["y"])
"""


def test_functions_of_one_name_in_several_folders_are_each_their_own_also_when_they_are_edited(root, tmp_path):
    """By hand: 4^2, 4^3, and 4^1 once the first is edited."""

    def asked(folder: Path, site: str) -> float:
        done = subprocess.run(
            [sys.executable, "ask.py", str(root), site],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, power in zip(folders, (2, 3), strict=True):
        folder.mkdir()
        (folder / "fn.py").write_text(FN.replace("POWER", str(power)))
        (folder / "ask.py").write_text(ASK)
    try:
        assert [asked(folder, "threads") for folder in folders] == [16.0, 64.0]
        (folders[0] / "fn.py").write_text(FN.replace("POWER", "1") + "# of another length\n")
        assert [asked(folder, site) for folder, site in zip(folders, ("laptop", "threads"), strict=True)] == [
            4.0,
            64.0,
        ]
    finally:
        Workspace(root).end(runs=True)


def test_an_app_that_cannot_be_made_where_it_runs_fails_and_others_go_on(workspace, tmp_path, monkeypatch):
    workspace.about()  # the service has no such variable
    (tmp_path / "asks_17.py").write_text(
        "import os\nimport hpcagent as ha\nFOLDER = os.environ['ONLY_HERE_17']\n"
        "@ha.app(parameters={'x': ha.Float(0, 1)}, metrics={'y': '1'})\ndef plain(x):\n    return {'y': x}\n"
        "@ha.chain(parameters={'x': ha.Float(0, 1)}, metrics={'y': '1'})\n"
        "def chained(x):\n    return {'y': plain(x=x)['y']}\n"
    )
    monkeypatch.setenv("ONLY_HERE_17", "x")
    monkeypatch.syspath_prepend(str(tmp_path))
    import asks_17  # type: ignore[import-not-found]

    for app in (asks_17.plain, asks_17.chained):
        status = workspace.wait(workspace.run(app, {"x": 0.5})["id"], PATIENCE_S)
        assert status["state"] == "failed" and "ONLY_HERE_17" in status["failure"]["message"]
    assert workspace.wait(workspace.run("synthetic", {"x": 0.3})["id"], PATIENCE_S)["state"] == "completed"
    sys.modules.pop("asks_17", None)


def test_what_was_cancelled_may_be_asked_for_again_at_once(root):
    workspace = Workspace(root)
    run = workspace.run("synthetic", {"x": 0.3, "run_time_s": 1.0}, site="laptop")["id"]
    place = root / "work" / workspace.status(run)["execution_id"]
    until = time.monotonic() + PATIENCE_S
    while not (place / "manifest.json").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert workspace.cancel(run)["how"] == "its worker is ended"
    again = workspace.run("synthetic", {"x": 0.3, "run_time_s": 1.0}, site="laptop")["id"]
    status = workspace.wait(again, PATIENCE_S)
    assert again != run and (status["state"], status["failure"]) == ("completed", None)
    workspace.end(runs=True)


def test_a_note_that_somebody_has_damaged_is_written_anew(workspace, root):
    pid = workspace.about()["pid"]
    workspace.close()
    (root / "service.json").write_text("{")
    until = time.monotonic() + PATIENCE_S
    while len((root / "service.json").read_text()) < 10 and time.monotonic() < until:
        time.sleep(0.05)
    assert workspace.about()["pid"] == pid


def test_a_process_that_keeps_a_site_and_is_silent_holds_up_nobody(root, monkeypatch):
    """It is stopped: others are answered, it is told of, and in the end another takes its runs."""
    monkeypatch.setattr("hpcagent.workspace.kept.SILENT_S", 1.0)
    monkeypatch.setattr("hpcagent.workspace.kept.DEAD_S", 3.0)
    core = Core(root, apart=True)
    who = me(core)
    first = core.run(who, "synthetic", {"x": 0.3})["id"]
    core.wait(who, first, PATIENCE_S)
    [keeper] = core.folder.keepers()
    os.kill(keeper, signal.SIGSTOP)
    run = core.run(who, "synthetic", {"x": 0.4})["id"]
    until = time.monotonic() + PATIENCE_S
    while not core.rows[run].over and time.monotonic() < until:
        core.look()
        core.listed(who)
        time.sleep(0.1)
    assert core.rows[run].state == "completed" and core.folder.keepers() != [keeper]
    assert any("has not answered for" in news for news in core.news)
    core.close(end=True)


def test_a_copied_workspace_is_one_of_its_own(workspace, root, tmp_path):
    workspace.run("synthetic", {"x": 0.3})
    shutil.copytree(root, tmp_path / "copy", ignore=lambda *_: ["service.sock", "keeper.sock"])
    copy = Workspace(tmp_path / "copy")
    assert copy.about()["folder"] == str(tmp_path / "copy") and copy.about()["pid"] != workspace.about()["pid"]
    copy.end(runs=True)


def test_a_service_whose_socket_was_removed_makes_room_for_another(workspace, root):
    pid = workspace.about()["pid"]
    workspace.close()
    (root / "service.sock").unlink()
    assert workspace.about()["pid"] != pid


def test_when_the_process_that_keeps_a_site_is_killed_another_does_its_runs(root):
    workspace = Workspace(root)
    run = workspace.run("synthetic", {"x": 0.3, "run_time_s": 2.0})["id"]
    until = time.monotonic() + PATIENCE_S
    while workspace.status(run)["state"] != "running" and time.monotonic() < until:
        time.sleep(0.05)
    [keeper] = workspace.folder.keepers()
    os.kill(keeper, signal.SIGKILL)
    assert workspace.wait(run, PATIENCE_S)["state"] == "completed"
    assert any("another is started" in news for news in workspace.about()["news"])
    workspace.end(runs=True)
    assert workspace.folder.keepers() == []


def test_rules_are_read_anew_and_wrong_ones_change_nothing(workspace, root):
    assert workspace.estimate("synthetic", {"x": 0.3})["refused"] is None
    (root / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n[quota]\nruns_at_once = 0\n')
    with pytest.raises(NotAllowed, match="runs_at_once"):
        workspace.run("synthetic", {"x": 0.3})
    (root / "workspace.toml").write_text("[quota]\nruns = 3\n")
    with pytest.raises(NotAllowed, match="runs_at_once"):
        workspace.run("synthetic", {"x": 0.3})
    assert any("the rules as they were still hold" in news for news in workspace.about()["news"])


def test_one_thread_waits_and_another_is_answered(workspace):
    run = workspace.run("synthetic", {"x": 0.3, "run_time_s": 2.0})["id"]
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(workspace.wait(run, PATIENCE_S)["state"]))
    thread.start()
    answers = 0
    while not ended:
        workspace.status(run, lines=0)
        answers += 1
    thread.join()
    assert ended == ["completed"] and answers > 3


def test_a_service_of_a_machine_that_is_switched_off_is_taken_for_dead_after_a_while(workspace, root):
    about = {"host": "elsewhere", "pid": 1, "socket": str(root / "service.sock"), "folder": str(root.resolve())}
    (root / "service.json").write_text(json.dumps(about))
    with pytest.raises(BadInput, match="runs on elsewhere"):
        workspace.about()
    long_ago = time.time() - 3600
    os.utime(root / "service.json", (long_ago, long_ago))
    assert workspace.about()["runs"] == {}


def test_a_campaign_is_approved_as_a_whole_and_outlives_the_service(root, tmp_path):
    rules(root, "[[approval]]\nnodes_times_hours = 0.5\n")
    workspace = Workspace(root)
    with pytest.raises(NotAllowed, match="without a bound of node-hours"):
        workspace.start("synthetic")
    more = {"until.max_runs": 12, "fixed.run_time_s": 0.1}
    with pytest.raises(NotAllowed) as asked:
        workspace.start("synthetic", changes=more)
    workspace.grant(asked.value.approval)
    begun = workspace.start("synthetic", changes=more)
    os.kill(workspace.about()["pid"], signal.SIGKILL)
    status = workspace.wait(begun["id"], PATIENCE_S)
    assert status["state"] == "completed" and "12 runs" in status["notes"][0]
    assert status["asked_at"] < status["changed_at"]
    assert workspace.start("synthetic", changes=more)["found"]
    assert workspace.costs()["workspace"]["node_hours"] > 0
    workspace.end(runs=True)


def test_a_campaign_that_was_just_being_begun_when_the_service_was_killed_is_not_lost(root):
    """Killed at several moments of the start: it runs once, to its end, and is booked."""
    workspace = Workspace(root)
    for delay_s in (0.05, 0.4, 1.2):
        more = {"until.max_runs": 3, "seed": int(100 * delay_s)}
        workspace.about()
        pid = workspace.about()["pid"]
        timer = threading.Timer(delay_s, os.kill, (pid, signal.SIGKILL))
        timer.start()
        begun = workspace.start("synthetic", changes=more)  # asked again by the client where the service has died
        timer.join()
        status = workspace.wait(begun["id"], PATIENCE_S)
        assert status["state"] == "completed" and "3 runs" in status["notes"][0], status
    rows = [row for row in workspace.list()["runs"] if row["kind"] == "campaign"]
    assert [row["state"] for row in rows] == ["completed"] * 3
    assert workspace.costs()["workspace"]["node_hours"] > 0
    workspace.end(runs=True)


def test_an_idle_service_ends_by_itself(root):
    rules(root, "idle_s = 1.0\n")
    workspace = Workspace(root)
    workspace.about()
    workspace.close()
    until = time.monotonic() + PATIENCE_S
    while (root / "service.json").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not (root / "service.json").exists()
    assert workspace.about()["runs"] == {}
    workspace.end(runs=True)


def test_old_folders_go_when_their_time_is_over_and_their_records_stay(root):
    rules(root, "retention_days = 1\n")
    now = [time.time()]
    core = Core(root, clock=lambda: now[0])
    old = core.run(me(core), "synthetic", {"x": 0.3})["id"]
    core.wait(me(core), old, PATIENCE_S)
    now[0] += 2 * 86400
    young = core.run(me(core), "synthetic", {"x": 0.4})["id"]
    core.wait(me(core), young, PATIENCE_S)
    assert core.expire(me(core))["removed"] == [old]
    assert core.status(me(core), old)["metrics"]["value"] == pytest.approx(25.2)
    assert core.artifacts(me(core), young) and not core.artifacts(me(core), old)
    assert "its files were removed" in core.status(me(core), old)["notes"]
    left = core.accounts.whole.bytes
    core.close()
    core = Core(root, clock=lambda: now[0])
    assert 0 < left == core.accounts.whole.bytes
    now[0] += 2 * 86400
    core.look()  # without being asked
    assert not core.artifacts(me(core), young) and core.accounts.whole.bytes == 0
    core.close()


# -- the simulation that needs nothing ------------------------------------------------------------


def test_a_simulation_gives_a_handle_at_once_and_its_results_by_name_or_id(core):
    who = me(core)
    begun = core.simulation_run(who, name="spring", max_steps=500, seed=3)
    assert begun["simulation_status"] in ("pending", "running", "completed") and begun["status"] == "success"
    core.wait(who, begun["run_id"], PATIENCE_S)
    found = core.simulation_get_results(who, name="spring")
    assert found == core.simulation_get_results(who, name=begun["run_id"])
    assert (found["steps_completed"], found["simulation_status"]) == (500, "completed")
    assert found["config"]["max_steps"] == 500 and found["config"]["seed"] == 3
    assert found["results"]["position"]["unit"] == "angstrom"
    again = core.simulation_run(who, name="spring", max_steps=500, seed=3)
    assert again["run_id"] == begun["run_id"]
    other = core.simulation_run(who, name="other", max_steps=500, seed=3)  # the same work by another name
    assert other["run_id"] != begun["run_id"] and other["results"] == found["results"]


def test_without_a_seed_one_is_drawn_and_said(core):
    first, second = (core.simulation_run(me(core), max_steps=10)["config"]["seed"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": -3}, "max_steps"),
        ({"max_steps": 2.5}, "max_steps"),
        ({"max_steps": True}, "max_steps"),
        ({"max_steps": 10**9}, "max_steps"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"params": [1]}, "params"),
        ({"params": {"max_steps": 3}}, "params"),
        ({"params": {"mass": "heavy"}}, "mass"),
        ({"params": {"colour": 1}}, "colour"),
    ],
)
def test_what_a_simulation_cannot_be_given_is_refused_by_field(core, more, field):
    with pytest.raises(NotAllowed) as caught:
        core.simulation_run(me(core), **more)
    assert (caught.value.check, caught.value.field) == ("contract", field)
    assert not core.rows


def test_a_simulation_that_fails_says_at_which_step(core):
    begun = core.simulation_run(me(core), max_steps=5000, params={"timestep": 100.0, "mass": 1.0})
    core.wait(me(core), begun["run_id"], PATIENCE_S)
    found = core.simulation_get_results(me(core), name="default_simulation")
    made = found["steps_completed"]
    assert found["status"] == "error" and found["error"].startswith(f"step {made + 1}:") and made > 1
    assert found["results"] == {"steps_completed": {"value": made, "unit": "1"}}
    with pytest.raises(BadInput, match="there is no simulation 'none'"):
        core.simulation_get_results(me(core), name="none")


# -- a disk that refuses --------------------------------------------------------------------------


def test_with_a_full_disk_nothing_is_acknowledged_and_what_ends_is_recorded_later(core, monkeypatch):
    who = me(core)
    begun = core.run(who, "synthetic", {"x": 0.3, "run_time_s": 0.3})["id"]
    full = StoreFull("No space left on device.", path="journal.jsonl")

    def refuse(events: object) -> None:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(core._journal, "append", refuse)
        with pytest.raises(StoreFull):
            core.run(who, "synthetic", {"x": 0.4})
        assert len(core.rows) == 1  # what is not written down is not there
        until = time.monotonic() + PATIENCE_S
        while not core.news and time.monotonic() < until:
            time.sleep(0.02)
        assert core.news == [str(full)] and not core.rows[begun].over
    core.look()
    assert core.status(who, begun)["state"] == "completed"
    assert core.run(who, "synthetic", {"x": 0.4})["found"] is False


def test_a_folder_that_others_may_write_is_refused(root):
    root.chmod(0o777)
    with pytest.raises(BadInput, match="can be written by every user"):
        Core(root)
    root.chmod(0o700)


# -- optimisation ---------------------------------------------------------------------------------

GOAL = {"maximize": "value", "subject_to": {"error": {"at_most": 1.0}}}


def test_the_best_point_of_an_app_is_looked_for_and_answered_with_errors(core):
    who = me(core)
    begun = core.bayesian_optimize(
        who, objective_function="synthetic", objective=GOAL, budget=16, search_space={"x": {}, "y": {}}
    )
    core.look()
    until = time.monotonic() + PATIENCE_S
    while not core.rows[begun["id"]].over and time.monotonic() < until:
        time.sleep(0.1)
        core.look()
    answer = core.answer(who, begun["id"])
    best = answer["best"]
    # 60 at x = 0.6, y = 0.4 (docstring of the app) with the style plain.
    assert 55 < best["metrics"]["value"] <= 60 and best["probability_feasible"] > 0.9
    assert answer["runs"] == {"completed": 16} and answer["node_hours"] > 0
    assert answer["expected_regret"]["at_most_95"] >= 0
    found = core.recommend(who, begun["id"], n=2)
    assert len(found["recommended_points"]) == 2 and found["unit"] == "1"
    assert found["expected_improvement"] >= 0
    assert {"x", "y"} == set(found["recommended_points"][0]["params"])
    with pytest.raises(BadInput, match="must be 1 to 64"):
        core.recommend(who, begun["id"], n=0)
    name = core.rows[begun["id"]].label
    assert name and name == core.campaign(who, begun["id"])["name"]
    with pytest.raises(BadInput, match="there is no simulation"):  # a campaign of that name is none
        core.simulation_get_results(who, name=name)
    assert core.simulation_run(who, name=name, max_steps=10)["config"]["name"] == name


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"budget": 0}, "whole number of runs"),
        ({"objective_function": "no_such_app"}, "no app 'no_such_app'"),
        ({"objective_function": "lambda x: x"}, "lambda x"),
        ({"objective": {"maximize": "beauty"}}, "beauty"),
        ({"search_space": {"colour": {}}}, "colour"),
        ({"fixed": {"x": object}}, "allowed"),
    ],
)
def test_an_optimisation_is_refused_by_what_is_wrong_with_it(core, more, words):
    asked = {"objective_function": "synthetic", "objective": GOAL, "budget": 4} | more
    with pytest.raises(NotAllowed, match=words):
        core.bayesian_optimize(me(core), **asked)
    assert not core.rows


# -- events, contexts, resources ------------------------------------------------------------------


def test_a_subscriber_is_told_of_its_own_runs_and_of_no_others(root):
    rules(root, '[people.ada]\nrole = "planner"\n[people.bob]\nrole = "planner"\n')
    core = Core(root)
    ada, bob = core.caller(os.getuid(), "ada"), core.caller(os.getuid(), "bob")
    mine = core.subscribe(ada, events=["on_job_complete", "on_job_failed"], where={"job_type": "synthetic"})
    assert mine["status"] == "active"
    his = core.subscribe(bob, events=["on_job_complete"])
    good = core.run(ada, "synthetic", {"x": 0.3})["id"]
    bad = core.run(ada, "synthetic", {"x": 0.9, "fail_above": 0.5})["id"]
    other = core.run(ada, "oscillator", {"max_steps": 10})["id"]
    for run in (good, bad, other):
        core.wait(ada, run, PATIENCE_S)
    told = core.notifications(ada, subscription_id=mine["subscription_id"])
    assert {(t["event"], t["payload"]["job_id"]) for t in told} == {
        ("on_job_complete", good),
        ("on_job_failed", bad),
    }
    assert next(t for t in told if t["event"] == "on_job_failed")["payload"]["reason"]
    assert core.notifications(bob, subscription_id=his["subscription_id"]) == []
    core.acknowledge(ada, subscription_id=mine["subscription_id"], n=max(t["n"] for t in told))
    core.close()
    core = Core(root)  # the cursor holds, and nothing is told twice
    assert core.notifications(ada, subscription_id=mine["subscription_id"]) == []
    core.close()


def test_a_quota_that_is_reached_is_an_event(root):
    rules(root, "[quota]\nruns_at_once = 0\n")
    core = Core(root)
    mine = core.subscribe(me(core), events=["on_quota_exceeded"])
    with pytest.raises(NotAllowed):
        core.run(me(core), "synthetic", {"x": 0.3})
    told = core.notifications(me(core), subscription_id=mine["subscription_id"])
    assert [t["payload"]["quota"] for t in told] == ["runs_at_once"]
    core.close()


def test_a_trigger_starts_a_run_through_the_gate_once(root):
    (root / "triggers.toml").write_text(
        '[[triggers]]\nname = "closer"\nwhen = "on_job_complete"\nwhere = {job_type = "synthetic"}\n'
        'then = {tool = "oscillator", arguments = {max_steps = 20}}\n'
        '[[triggers]]\nname = "wrong"\nwhen = "on_job_complete"\nwhere = {job_type = "synthetic"}\n'
        'then = {tool = "oscillator", arguments = {max_steps = 0}}\n'
    )
    core = Core(root)
    first = core.run(me(core), "synthetic", {"x": 0.3})["id"]
    core.wait(me(core), first, PATIENCE_S)
    for _ in range(3):
        core.look()
    started = [row for row in core.listed(me(core))["runs"] if row["app"] == "oscillator"]
    assert len(started) == 1
    assert core.wait(me(core), started[0]["id"], PATIENCE_S)["params"]["max_steps"] == 20
    assert any(e["event"] == "refused" and e["field"] == "max_steps" for e in read_events(root / "journal.jsonl"))
    core.close()


def test_what_somebody_tells_a_trigger_is_data(root):
    (root / "triggers.toml").write_text(
        '[[triggers]]\nname = "asks"\nwhen = "on_comment_added"\n'
        'then = {tool = "query_materials_database", arguments = {source = {from = "text"}}}\n'
    )
    core = Core(root)
    core.tell(me(core), event="on_comment_added", payload={"on": "r-1", "text": "/etc/hostname"})
    core.look()
    assert not core.rows
    assert any(e["event"] == "refused" and e["field"] == "source" for e in read_events(root / "journal.jsonl"))
    core.close()


def test_what_somebody_tells_a_trigger_of_a_campaign_names_no_file(root):
    (root / "triggers.toml").write_text(
        '[[triggers]]\nname = "asks"\nwhen = "on_comment_added"\n'
        'then = {campaign = "synthetic", arguments = {"fixed.x" = {from = "text"}}}\n'
    )
    core = Core(root)
    core.tell(me(core), event="on_comment_added", payload={"on": "r-1", "text": "notes.txt"})
    core.look()
    assert not core.rows
    refused = [e for e in read_events(root / "journal.jsonl") if e["event"] == "refused"]
    assert [(e.get("field"), "could name a file" in e["why"]) for e in refused] == [("fixed.x", True)]
    core.close()


def test_contexts_and_resources_of_a_workspace_are_shared_in_the_callers_role(workspace, root):
    from hpcagent.contexts import put

    mine = workspace.subscribe("on_context_update")
    context = workspace.contexts().create("study", intent="a better catalyst")
    context.write(put("shared", "metal", "Cu"), by="planner", version=1)
    told = workspace.notifications(mine["subscription_id"])
    assert told[-1]["payload"]["context_id"] == "study"
    rows = workspace.resources().database("catalyst_db")
    fields = {
        "metal": "Cu",
        "support": "ZnO",
        "adsorbate": "CO2",
        "surface_area": 50.0,
        "adsorption_energy": -1.3,
        "reference": "test",
        "method": "by hand",
    }
    rows.add(fields)
    rules(root, '[people.eve]\nrole = "viewer"\n')
    workspace.end()
    eve = Workspace(root, as_="eve").resources()
    assert len(eve.database("catalyst_db").query({"metal": "Cu"}).items) == 1
    with pytest.raises(NotPermitted):
        eve.database("catalyst_db").add(fields)


def test_a_walltime_gives_a_run_a_bound_where_there_is_a_quota(root):
    rules(root, "[quota]\nnode_hours = 1.0\n")
    core = Core(root)
    with pytest.raises(NotAllowed, match="give the run a walltime_s"):
        core.run(me(core), "synthetic", {"x": 0.3})
    with pytest.raises(NotAllowed, match="node-hours of the workspace"):
        core.run(me(core), "synthetic", {"x": 0.3}, walltime_s=3601.0 * len(usable_cores()))
    with pytest.raises(NotAllowed) as wrong:
        core.run(me(core), "synthetic", {"x": 0.3}, walltime_s=-1.0)
    assert wrong.value.field == "walltime_s"
    run = core.run(me(core), "synthetic", {"x": 0.3}, walltime_s=3600.0 * len(usable_cores()))["id"]
    assert core.costs(me(core))["workspace"]["committed_node_hours"] in (0.0, 1.0)
    assert core.wait(me(core), run, PATIENCE_S)["state"] == "completed"
    assert core.costs(me(core))["workspace"]["node_hours"] < 1e-3
    core.close()


def test_of_a_file_of_10_gb_a_piece_is_read_and_no_more(core):
    run = core.run(me(core), "synthetic", {"x": 0.3})["id"]
    core.wait(me(core), run, PATIENCE_S)
    large = core.folder.work / core.rows[run].execution_id / "trajectory.dump"
    size = 10 * 10**9
    with large.open("wb") as file:
        file.truncate(size)  # takes no room on the disk
        file.seek(size - 3)
        file.write(b"end")
    assert {f["path"]: f["bytes"] for f in core.artifacts(me(core), run)}["trajectory.dump"] == size
    piece = core.fetch(me(core), run, "trajectory.dump", offset=size - 4, length=1 << 20)
    assert (piece["data"], piece["next"], piece["bytes"]) == ("AGVuZA==", None, size)
    assert core.fetch(me(core), run, "trajectory.dump", offset=size + 5, length=10)["data"] == ""


def test_a_read_only_workspace_is_one_clear_error(root, monkeypatch):
    core = Core(root)

    def refuse(*args: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(StoreFull, match="Read-only file system"):
        core.run(me(core), "synthetic", {"x": 0.3})
    monkeypatch.undo()
    assert not core.rows and core.run(me(core), "synthetic", {"x": 0.3})["found"] is False
    core.close()


def test_a_service_ends_when_its_workspace_is_removed(root):
    workspace = Workspace(root)
    pid = workspace.about()["pid"]
    workspace.close()
    shutil.rmtree(root)
    until = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_result_that_cannot_be_written_holds_up_nobody_elses(core):
    """It has failed, with why; those behind it are recorded."""
    good = core.run(me(core), "synthetic", {"x": 0.3})["id"]
    core.wait(me(core), good, PATIENCE_S)
    row = core.rows[good]
    result = Result.model_validate({**row.result, "manifest": row.manifest})
    odd = result.model_copy(update={"artifacts": {"data": "a.d\udcff"}})
    row.state = "running"
    core._late += [(row, odd, 0.0)]
    core._take_late()
    assert row.state == "failed" and "could not be recorded" in " ".join(core.news)
    assert not core._late and row.result["failure"]
    later = core.run(me(core), "synthetic", {"x": 0.4})["id"]
    assert core.wait(me(core), later, PATIENCE_S)["state"] == "completed"


def test_those_who_share_a_run_end_with_it_in_one_write(core, monkeypatch):
    """A disk that is full between two lines would leave one of them waiting, and book the run again."""
    jobs = []
    desk = SimpleNamespace(add=jobs.append, busy=0, close=lambda **_: None)
    monkeypatch.setattr(core.sites, "desk", lambda row: desk)
    ada, bob = (Caller(name=name, role="planner") for name in ("ada", "bob"))
    one, other = (core.run(who, "synthetic", {"x": 0.3})["id"] for who in (ada, bob))
    assert core.rows[other].shares == one
    write, ended_in = core._write, []

    def full_once(*events):
        if events[0]["event"] == "ended":
            ended_in.append([event["id"] for event in events])
            if len(ended_in) == 1:
                raise StoreFull("No space left on device", path="journal")
        write(*events)

    monkeypatch.setattr(core, "_write", full_once)
    (job,) = jobs
    cost = Cost(wall_s=3600.0, node_hours=1.0)
    job.ended(Result(manifest=job.manifest, status="COMPLETED", cost=cost, started_at=1.0, ended_at=2.0), 0.0)
    core.look()
    assert ended_in == [[one, other], [one, other]]
    assert {core.rows[one].state, core.rows[other].state} == {"completed"} and not core._late
    assert (core.accounts.of("ada").node_hours, core.accounts.of("bob").node_hours) == (1.0, 0.0)
