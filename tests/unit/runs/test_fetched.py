"""Files of runs on an endpoint: brought in verified pieces, once, to where everything looks for them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.campaign.state import result_event
from hpcagent.errors import BadInput, FetchFailed
from hpcagent.model.records import Remote
from hpcagent.runs.archive import archive
from hpcagent.runs.fetched import Fetcher, How, fetch
from hpcagent.runs.removed import remove_run
from hpcagent.sites.endpoint import fetching, protocol
from hpcagent.store.journal import read_events
from hpcagent.testing.local_link import LocalLink
from tests.unit.campaign.records_for_tests import in_directories

ENDPOINT = "8f0c24c8-1111-4222-8333-444455556666"
LOG = b"Step Temp\n" * 20_000
DUMP = os.urandom(700_000)


class Endpoint:
    """What answers `list` and `get`, from a folder that is the endpoint's disk; spoiled on request."""

    def __init__(self, root: Path) -> None:
        self.root, self.spoil, self.asked = root, {}, []

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        protocol.checked(request)
        self.asked.append(request)
        run = self.root / "work" / request["execution"]
        if request["op"] == "list":
            names = request.get("paths") or [str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()]
            found = {n: (run / n).read_bytes() for n in names if (run / n).is_file()}
            return {"files": {n: [len(d), hashlib.sha256(d).hexdigest()] for n, d in found.items()}}
        if not (run / request["path"]).is_file():
            return {"error": {"name": "NotFound", "kind": "contract", "message": "it is not there.\x1b[2J"}}
        data = (run / request["path"]).read_bytes()
        piece = data[request["offset"] : request["offset"] + request["length"]]
        answer = {"data": protocol.packed_bytes(piece), "size": len(data)}
        answer["sha256"] = hashlib.sha256(piece).hexdigest()
        change = self.spoil.pop(request["offset"], None)
        if change is not None:
            change(answer)
        return answer

    @property
    def gets(self) -> list[int]:
        return [r["offset"] for r in self.asked if r["op"] == "get"]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A finished campaign of this machine."""
    folder = tmp_path_factory.mktemp("local") / "run"
    ha.run("synthetic", site="threads", run_dir=folder, progress=False)
    return folder


@pytest.fixture
def far(local, tmp_path, monkeypatch):
    """The same campaign, as if run 3 had been computed on an endpoint; and that endpoint."""
    monkeypatch.setattr(fetching, "CHUNK", 100_000)
    folder, there = tmp_path / "run", tmp_path / "there" / "synthetic"
    folder.mkdir()
    for name in ("campaign.toml", "app.json"):
        (folder / name).write_bytes((local / name).read_bytes())
    third = next(r for r in ha.open_run(local).results if r.manifest.index == 3)
    identity = third.manifest.execution_id
    files = {"log.lammps": LOG, "out/dump.bin": DUMP, "empty": b"", "result.json": b"{}"}
    for name, data in files.items():
        (there / "work" / identity / name).parent.mkdir(parents=True, exist_ok=True)
        (there / "work" / identity / name).write_bytes(data)
    listed = {n: (len(d), hashlib.sha256(d).hexdigest()) for n, d in files.items()}
    remote = Remote(site="far", endpoint_id=ENDPOINT, workdir=f"{there}/work/{identity}", files=listed)
    here = str(folder / "work" / identity)
    new = third.model_copy(update={"remote": remote, "workdir": here, "artifacts": {"log": "log.lammps"}})
    with (folder / "events.jsonl").open("w") as journal:
        for event in read_events(local / "events.jsonl"):
            if event["event"] == "results":
                rows = [result_event(new) if r["execution_id"] == identity else r for r in event["results"]]
                event["results"] = rows
            journal.write(json.dumps(event) + "\n")
    return folder, new, Endpoint(there)


@pytest.fixture
def get(far, monkeypatch):
    """`fetch` of run 3 over a link in this process."""
    folder, _, endpoint = far
    bare = SimpleNamespace(name="far", transfer=None)
    monkeypatch.setattr("hpcagent.runs.fetched.profile_there", lambda *_: bare)

    def run(*paths: str, link: LocalLink | None = None, which: int | str = 3, **options: Any):
        way = link or LocalLink(answer=endpoint)
        return fetch(folder, which, *paths, connect=lambda _: way, **options)

    return run


def test_an_artifact_comes_in_pieces_to_the_runs_own_directory_and_only_once(far, get):
    folder, result, endpoint = far
    seen: list[tuple[str, int, int]] = []
    done = get("log", watch=lambda *a: seen.append(a))
    here = folder / "work" / result.manifest.execution_id / "log.lammps"
    assert done.paths == (here,) and here.read_bytes() == LOG
    assert endpoint.gets == [0, 100_000] and seen[-1] == ("log.lammps", len(LOG), len(LOG))
    assert stat.S_IMODE(here.stat().st_mode) == 0o600 and stat.S_IMODE(here.parent.stat().st_mode) == 0o700
    assert not list(folder.rglob("*.part"))
    again = get("log.lammps")
    assert again.files[0].already and len(endpoint.asked) == 2


def test_an_open_campaign_is_not_disturbed_and_replays_the_same(far, get):
    folder, *_ = far
    before = (folder / "events.jsonl").read_bytes(), len(ha.open_run(folder).results)
    assert get(everything=True).notes
    assert ((folder / "events.jsonl").read_bytes(), len(ha.open_run(folder).results)) == before


def test_all_files_come_but_records_that_a_campaign_would_read(far, get, tmp_path):
    folder, result, _ = far
    done = get(everything=True)
    here = folder / "work" / result.manifest.execution_id
    assert sorted(f.path for f in done.files) == ["empty", "log.lammps", "out/dump.bin"]
    assert (here / "out" / "dump.bin").read_bytes() == DUMP and (here / "empty").read_bytes() == b""
    assert not (here / "result.json").exists() and "events.jsonl" in done.notes[0]
    assert get("result.json", to=tmp_path / "else").paths[0].read_bytes() == b"{}"


def test_globs_numbers_and_ids_name_files_and_runs(far, get):
    _, result, _ = far
    assert [f.path for f in get("*dump*", which=result.manifest.execution_id[:9]).files] == ["out/dump.bin"]
    with pytest.raises(BadInput, match=r"no file 'log.lamps'.*did you mean 'log.lammps'"):
        get("log.lamps")
    with pytest.raises(BadInput, match=r"log, out/dump\.bin"):
        get()


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a\0b", "out/../../x"])
def test_a_path_that_leads_elsewhere_is_refused_before_anything_is_asked(far, get, name):
    with pytest.raises(BadInput, match="below the run's directory"):
        get(name)
    assert not far[2].asked


def test_a_fetch_that_was_cut_off_goes_on_where_it_was(far, get):
    folder, result, endpoint = far
    part = folder / "work" / result.manifest.execution_id / "out" / "dump.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(DUMP[:300_000])
    done = get("out/dump.bin")
    assert done.files[0].kept == 300_000 and endpoint.gets == [300_000, 400_000, 500_000, 600_000]
    assert done.paths[0].read_bytes() == DUMP and not part.exists()


def test_what_an_earlier_try_left_of_something_else_is_thrown_away(far, get):
    folder, result, _ = far
    part = folder / "work" / result.manifest.execution_id / "log.lammps.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 50)
    assert get("log").paths[0].read_bytes() == LOG


def bomb(answer: dict[str, Any]) -> None:
    answer["data"] = protocol.packed_bytes(b"\0" * 50_000_000)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.update(sha256="0" * 64),
        lambda a: a.update(data="no base64"),
        lambda a: a.update(data=None),
        lambda a: a.update(data=protocol.packed_bytes(b"short"), sha256=hashlib.sha256(b"short").hexdigest()),
        bomb,
    ],
)
def test_a_damaged_piece_is_asked_for_again(far, get, spoil):
    endpoint = far[2]
    endpoint.spoil[100_000] = spoil
    assert get("log").paths[0].read_bytes() == LOG
    assert endpoint.gets == [0, 100_000, 100_000]


def test_an_endpoint_that_lies_on_and_on_ends_in_one_sentence(far, get):
    folder, _, endpoint = far

    class Always(dict):
        def pop(self, *_: Any) -> Any:
            return lambda a: a.update(sha256="0" * 64)

    endpoint.spoil = Always()
    with pytest.raises(FetchFailed, match=r"log.lammps: the piece at byte 0 arrived damaged 3 times .*far"):
        get("log")
    assert not list(folder.rglob("log.lammps"))


@pytest.mark.parametrize("content", [LOG + b"more\n", b"X" + LOG[1:]])
def test_a_file_that_changed_since_the_run_is_not_taken_for_the_runs(far, get, tmp_path, content):
    folder, result, endpoint = far
    (endpoint.root / "work" / result.manifest.execution_id / "log.lammps").write_bytes(content)
    with pytest.raises(FetchFailed, match=r"has changed since the run ended: .*--changed") as refused:
        get("log")
    assert refused.value.name == "FileChanged" and not list(folder.rglob("log.lammps"))
    with pytest.raises(BadInput, match="--to beside --changed"):
        get("log", changed=True)
    done = get("log", changed=True, to=tmp_path / "new")
    assert done.paths[0].read_bytes() == content and "has changed since" in done.notes[0]


def test_a_file_that_is_gone_is_said_in_the_endpoints_words_without_its_control_characters(far, get):
    _, result, endpoint = far
    (endpoint.root / "work" / result.manifest.execution_id / "log.lammps").unlink()
    with pytest.raises(FetchFailed, match=r"log.lammps: the endpoint far .* NotFound: it is not there") as said:
        get("log")
    assert "\x1b" not in str(said.value)


def test_nothing_here_is_overwritten_and_no_link_is_followed(far, get, tmp_path):
    folder, result, endpoint = far
    own = folder / "work" / result.manifest.execution_id
    own.mkdir(parents=True)
    (own / "log.lammps").write_text("mine")
    with pytest.raises(BadInput, match="is here with another content"):
        get("log")
    outside = tmp_path / "outside"
    outside.mkdir()
    (own / "out").symlink_to(outside)
    with pytest.raises(BadInput, match=r"'out' on the way to .* is a link"):
        get("out/dump.bin")
    (own / "empty").symlink_to(tmp_path / "target")
    with pytest.raises(BadInput, match="no regular file"):
        get("empty")
    (own / "log.lammps").unlink()
    (own / "log.lammps.part").symlink_to(tmp_path / "target")
    with pytest.raises(BadInput, match="no regular file"):
        get("log")
    (own / "log.lammps.part").unlink()
    os.link(own.parent.parent / "events.jsonl", own / "log.lammps.part")
    with pytest.raises(BadInput, match="no file of its own"):
        get("log")
    assert not list(outside.iterdir()) and not (tmp_path / "target").exists()
    assert (folder / "events.jsonl").stat().st_size > 0 and not endpoint.gets


def test_two_at_once_do_not_write_one_file(far, get):
    folder, result, _ = far
    from hpcagent.store.arriving import Place

    place = Place(folder / "work" / result.manifest.execution_id)
    with place.arriving("log.lammps"), pytest.raises(BadInput, match="by another process now"):
        get("log")
    assert get("log").paths[0].read_bytes() == LOG


def test_large_files_are_refused_with_what_to_do(far, get):
    with pytest.raises(
        BadInput,
        match=r"0.9 MB are to come \(out/dump.bin.*--max-mb 1, or take Globus Transfer \(--transfer\)\. .*/out/dump.bin there",
    ):
        get("log", "out/dump.bin", max_mb=0.5)
    with pytest.raises(BadInput, match=r"has no \[transfer\], which names the two collections"):
        get("out/dump.bin", transfer=True)
    assert not far[2].asked
    get("log", max_mb=0.5)
    with pytest.raises(BadInput, match=r"1 file\(s\) of 0.7 MB"):
        get("log", "out/dump.bin", max_mb=0.5)


def test_an_offline_endpoint_is_said_and_the_next_try_goes_on(far, get, monkeypatch):
    _, _, endpoint = far
    monkeypatch.setattr(fetching, "LOOK_S", 0.05)
    link = LocalLink(answer=endpoint)
    link.set_offline(True)
    with pytest.raises(FetchFailed, match=r"far .* is offline .*the same command goes on"):
        get("log", link=link)
    assert get("log").paths[0].read_bytes() == LOG


def test_a_slow_endpoint_is_waited_for_and_that_is_said(far, get, monkeypatch):
    monkeypatch.setattr(fetching, "LOOK_S", 0.05)
    link = LocalLink(answer=far[2])
    link.faults.delay_s = 0.2
    said: list[str] = []
    get("log", link=link, say=said.append)
    assert "no answer from the endpoint far" in said[0] and "[control]" in said[0]


def test_files_beyond_the_record_are_asked_for(far, get):
    folder, result, endpoint = far
    assert result.remote is not None
    (endpoint.root / "work" / result.manifest.execution_id / "frame7").write_bytes(b"seven")
    short = result.model_copy(update={"remote": result.remote.model_copy(update={"files": {}, "unlisted": 5})})
    with Fetcher(folder / "work", lambda _: None, lambda _: LocalLink(answer=endpoint)) as fetcher:
        done = fetcher.fetch(short, ["frame*"], How())
    assert [f.path for f in done.files] == ["frame7"] and done.paths[0].read_bytes() == b"seven"


def test_artifacts_of_a_chain_come_from_its_inner_runs(far):
    folder, inner, endpoint = far
    chain = (
        ha.open_run(folder)
        .results[0]
        .model_copy(update={"artifacts": {"log": f"../{inner.manifest.execution_id}/log.lammps"}})
    )
    with Fetcher(folder / "work", lambda _: None, lambda _: LocalLink(answer=endpoint)) as fetcher:
        done = fetcher.fetch(chain, ["log"], How(), lambda i: inner if i == inner.manifest.execution_id else None)
    assert done.paths == (folder / "work" / inner.manifest.execution_id / "log.lammps",)


def test_a_run_of_this_machine_has_its_files_here(local):
    with pytest.raises(BadInput, match="wrote no file"):
        fetch(local, 0, everything=True)
    in_directories(local)
    done = fetch(local, 0, everything=True)
    assert not done.files and f"{local / 'work'}" in done.notes[0]
    with pytest.raises(BadInput, match=r"'nothing.txt' is not among them"):
        fetch(local, 0, "nothing.txt")


def test_no_profile_of_the_endpoint_is_said(far):
    with pytest.raises(BadInput, match=rf"lie on the endpoint far \({ENDPOINT}\).*--site PROFILE"):
        fetch(far[0], 3, "log")


def test_a_directory_that_is_no_runs_is_not_asked_for(far, get):
    folder, result, endpoint = far
    wrong = result.model_copy(update={"remote": result.remote.model_copy(update={"workdir": "/etc/x"})})
    with (
        Fetcher(folder / "work", lambda _: None, lambda _: LocalLink(answer=endpoint)) as fetcher,
        pytest.raises(FetchFailed, match="not where runs of a campaign lie"),
    ):
        fetcher.fetch(wrong, ["log"], How())


def test_a_result_fetches_its_own_files(far, monkeypatch):
    folder, result, endpoint = far
    monkeypatch.setattr("hpcagent.runs.fetched._connect", lambda _: LocalLink(answer=endpoint))
    monkeypatch.setattr("hpcagent.runs.fetched.profile_there", lambda *_: None)
    found = ha.open_run(folder)
    assert found.results[3].fetch("log").read_bytes() == LOG
    assert found.fetch(3, "log") == (Path(result.workdir) / "log.lammps",)
    with pytest.raises(BadInput, match="fits 2 files"):
        found.results[3].fetch("[lo]*")


def test_the_shell_prints_where_the_file_is(far, monkeypatch, capsys):
    from hpcagent import cli

    folder, result, endpoint = far
    monkeypatch.setattr("hpcagent.runs.fetched._connect", lambda _: LocalLink(answer=endpoint))
    monkeypatch.setattr("hpcagent.runs.fetched.profile_there", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["hpcagent", "fetch", str(folder), "3", "log", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and said["files"][0]["here"] == f"{result.workdir}/log.lammps"


# ---- what everything that opens files of runs says of those on an endpoint


def test_status_answer_explain_du_and_rm_say_where_the_files_are(far):
    folder, result, _ = far
    opened = ha.open_run(folder)
    at = f"the endpoint far ({ENDPOINT})"
    size = f"{result.remote.size / 1024:.1f} KiB"
    said = f"note: 4 files of 1 run(s), {size}, on {at}; `hpcagent fetch {folder} RUN PATH`"
    assert said in str(opened.status)
    assert at in str(opened.result)
    assert f"{result.remote.workdir} on {at}: hpcagent fetch {folder} 3 PATH" in str(opened.explain(3))
    used = ha.runs.disk_use(folder).campaigns[0]
    assert "not here: 4 files" in str(used) and used.data()["far"][0]["size_bytes"] == result.remote.size
    assert f"on {at}, which is not removed from there" in str(remove_run(folder, dry_run=True))
    rows = opened.to_pandas()
    assert rows.loc[rows["index"] == 3, "remote_workdir"].tolist() == [result.remote.workdir]
    assert rows["endpoint_id"].notna().sum() == 1


def test_records_of_this_machine_have_no_column_of_endpoints(local):
    assert "endpoint_id" not in ha.open_run(local).to_pandas()
    assert "endpoint" not in str(ha.open_run(local).status)


def test_an_archive_of_far_runs_opens_and_names_no_directory(far, tmp_path):
    folder, result, _ = far
    archive(folder, tmp_path / "it.tar.gz")
    again = next(r for r in ha.open_run(tmp_path / "it.tar.gz").results if r.manifest.index == 3)
    assert again.remote is not None and set(again.remote.files) == set(result.remote.files)
    with pytest.raises(BadInput, match="An archive is read only"):
        fetch(tmp_path / "it.tar.gz", 3, "log")


def test_a_plot_of_a_log_that_is_far_says_how_it_comes(far, get):
    from hpcagent.campaign.far import far_log

    folder, result, _ = far
    here = folder / "work" / result.manifest.execution_id
    assert far_log(result, here, folder).endswith(f"fetch it by: hpcagent fetch {folder} 3 log")
    get("log")
    assert far_log(result, here, folder) == ""


def test_rules_name_a_far_result_by_its_endpoint(far):
    rule = ha.types.Rule(event="found", metric=next(iter(far[1].metrics)), above=-1e9)
    assert rule.data(far[1])["result_uri"].startswith(f"globus-compute://{ENDPOINT}/")


@pytest.mark.parametrize(
    ("reader", "artifact"),
    [
        ("hpcagent.apps.structures:structure_of", "structure"),
        ("hpcagent.science.analysis.averages:read_table", "thermo"),
        ("hpcagent.science.analysis.averages:read_table", "log"),
        ("hpcagent.science.lammps.trajectory:open_trajectory", "trajectory"),
    ],
)
def test_a_reader_called_by_hand_says_how_a_far_file_comes(far, reader, artifact):
    from importlib import import_module

    module, name = reader.split(":")
    fields = far[1].model_copy(update={"artifacts": {artifact: "some.file"}}).model_dump(mode="json")
    with pytest.raises(ha.AppFailed, match=rf"{ENDPOINT}.*hpcagent fetch RUN_DIR .* {artifact}") as said:
        getattr(import_module(module), name)(fields)
    assert said.value.name == "MissingFile"


def test_a_trajectory_is_not_read_without_the_far_log_that_has_its_units(far, tmp_path):
    from hpcagent.science.lammps.trajectory import open_trajectory

    frames = "ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS pp pp pp\n0 1\n0 1\n0 1\n"
    (tmp_path / "a.dump").write_text(frames + "ITEM: ATOMS id type x y z\n1 1 0 0 0\n")
    artifacts = {"trajectory": "a.dump", "log": "log.lammps"}
    fields = far[1].model_copy(update={"artifacts": artifacts, "workdir": str(tmp_path)}).model_dump(mode="json")
    with pytest.raises(ha.AppFailed, match="the log of the input run lies on the endpoint far"):
        open_trajectory(fields).step_of_time()


def test_a_chain_that_decides_by_a_far_structure_fetches_it(far, monkeypatch):
    from hpcagent.apps.missing import brought

    _, result, endpoint = far
    monkeypatch.setattr("hpcagent.runs.fetched._connect", lambda _: LocalLink(answer=endpoint))
    monkeypatch.setattr("hpcagent.runs.fetched.profile_there", lambda *_: None)
    fields = brought(result, "log", "structure")
    assert (Path(fields["workdir"]) / "log.lammps").read_bytes() == LOG
