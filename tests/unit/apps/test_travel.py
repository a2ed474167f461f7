"""What a run is on its way to another machine, and what it becomes there."""

import hashlib
import json
import time
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.apps.catalog import find_app
from hpcagent.apps.travel import LARGEST, Packed, pack, unpack
from hpcagent.apps.worker import execute
from hpcagent.errors import AppFailed, BadInput

SITE = {"node_cores": 2, "apps": {}}


class Endpoint:
    """A folder on another machine: what was sent, by its content, and the campaign's folder beside it."""

    def __init__(self, folder: Path):
        self.inputs, self.root = folder / "there" / "inputs", folder / "there" / "campaign"
        self.inputs.mkdir(parents=True)
        self.asked: list[str] = []

    def take(self, blobs):
        for digest, content in blobs.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            assert hashlib.sha256(data).hexdigest() == digest
            (self.inputs / digest).write_bytes(data)

    def fetch(self, digest):
        self.asked.append(digest)
        path = self.inputs / digest
        if not path.is_file():
            raise FileNotFoundError(2, "not sent yet", digest)
        return path

    def opened(self, packed: Packed):
        order, upstream = json.loads(json.dumps([packed.order, packed.upstream], allow_nan=False))
        return unpack(order, upstream, self.fetch, root=self.root)

    def run(self, packed: Packed):
        self.take(packed.blobs)
        order, upstream = self.opened(packed)
        return json.loads(json.dumps(execute(order, *upstream), allow_nan=False))


@pytest.fixture
def endpoint(tmp_path):
    return Endpoint(tmp_path)


def order_of(app: App, work: Path, upstream=(), **params):
    manifest = app.manifest(params, upstream=upstream, site=SITE)
    return app.order(manifest, work=work / "here" / "work", site=SITE)


def test_a_run_of_lammps_gives_there_what_it_gives_here_and_is_less_than_2_kb(tmp_path, endpoint):
    app = find_app("lj_argon").frozen()
    first = order_of(app, tmp_path, timestep=0.004, steps=100, equil_steps=100)
    packed = pack(first)
    assert len(json.dumps(packed.order)) < 2000
    there, here = endpoint.run(packed), execute(first)
    assert here["status"] == there["status"] == "COMPLETED", there
    same = ("temperature", "pressure", "potential_energy_mev_per_atom")
    assert [there["metrics"][name] for name in same] == [here["metrics"][name] for name in same]
    assert there["workdir"] == f"{endpoint.root}/work/{first['manifest']['execution_id']}"


def test_what_runs_share_is_sent_once_and_packing_costs_little(tmp_path):
    app = find_app("lj_argon").frozen()
    orders = [order_of(app, tmp_path, timestep=0.004 + i * 1e-5) for i in range(50)]
    blobs = dict(pack(orders[0]).blobs)
    began = time.thread_time()
    packed = [pack(order) for order in orders]
    assert (time.thread_time() - began) / len(orders) < 1e-3  # 0.03 ms where this was written
    assert all(one.blobs == blobs for one in packed) and len(blobs) == 1
    other = pack(order_of(app.with_settings(), tmp_path) | {"promises": {"pressure": ("bar", True)}})
    assert other.order["common"] not in blobs


def test_files_of_an_app_travel_by_content_and_with_their_modes(tmp_path, endpoint):
    folder = tmp_path / "here" / "program"
    folder.mkdir(parents=True)
    (folder / "solve").write_text("#!/bin/sh\ncat deck.txt\n")
    (folder / "solve").chmod(0o755)
    (folder / "deck.txt").write_text("energy = ${x}\n")
    app = ha.executable(
        "./solve",
        parameters={"x": ha.Float(0, 1)},
        templates=["deck.txt"],
        metrics={"energy": ha.from_regex(r"energy = (\S+)", unit="1")},
        relative_to=folder,
    ).frozen()
    packed = pack(order_of(app, tmp_path, x=0.5))
    endpoint.take(packed.blobs)
    for path in folder.iterdir():
        path.unlink()  # nothing of here is there
    order, _ = endpoint.opened(packed)
    assert execute(order)["metrics"] == {"energy": 0.5}
    placed = [Path(path) for path in order["settings"]["paths"].values()]
    assert all(path.is_relative_to(endpoint.root) and not path.stat().st_mode & 0o222 for path in placed)
    placed[0].chmod(0o755)
    placed[0].write_text("#!/bin/sh\necho energy = 9\n")  # damaged there: made anew
    endpoint.opened(packed)
    assert "deck" in placed[0].read_text() or "energy = ${x}" in placed[0].read_text()


def test_a_file_that_a_point_chooses_travels_and_the_function_gets_its_path_there(tmp_path, endpoint):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"energy = 1 {name}\n")
    app = ha.executable(
        "cat {deck}",
        parameters={"deck": ha.File(tmp_path / "a.txt", tmp_path / "b.txt")},
        metrics={"energy": ha.from_regex(r"energy = (\S+)", unit="1")},
        relative_to=tmp_path,
    ).frozen()
    packed = [pack(order_of(app, tmp_path, deck=name)) for name in ("a.txt", "b.txt")]
    assert packed[0].order["common"] == packed[1].order["common"]
    assert len(packed[0].blobs) == 2  # its own file, and not the other
    assert "here" not in json.dumps(packed[0].order["chosen"])
    assert [endpoint.run(one)["metrics"] for one in packed] == [{"energy": 1.0}] * 2


def test_an_input_that_is_not_there_is_asked_for_with_all_others_that_are_not(tmp_path, endpoint):
    app = find_app("eam_cu").frozen()
    packed = pack(order_of(app, tmp_path))
    assert len(packed.blobs) >= 2 and set(packed.order["inputs"]) == set(packed.blobs)
    with pytest.raises(FileNotFoundError):
        endpoint.opened(packed)
    assert set(endpoint.asked) == set(packed.blobs)
    endpoint.take(packed.blobs)
    order, _ = endpoint.opened(packed)
    assert all(Path(path).is_file() for path in order["settings"]["paths"].values())


@pytest.mark.parametrize("given", ["atoms", "run here", "run there"])
def test_a_structure_travels_unless_it_is_there(tmp_path, endpoint, given):
    from ase.build import bulk

    from hpcagent.apps.structures import given as as_given
    from hpcagent.apps.structures import structure_of

    atoms = bulk("Cu", cubic=True)
    fields = dict(as_given(atoms).fields)
    run = endpoint.root / "work" / "earlier"
    if given == "run here":
        run = tmp_path / "here" / "work" / "earlier"
    if given != "atoms":
        run.mkdir(parents=True)
        (run / "structure.xyz").write_text(fields.pop("structure"))
        fields |= {
            "workdir": str(tmp_path / "here" / "work" / "earlier"),
            "artifacts": {"structure": "structure.xyz"},
        }
    if given == "run there":
        fields["remote"] = {"site": "cluster", "endpoint_id": "", "workdir": str(run), "files": {}}
    packed = pack(order_of(find_app("lj_argon").frozen(), tmp_path), [fields])
    assert (len(packed.blobs) == 2) == (given == "run here")
    endpoint.take(packed.blobs)
    if given == "run here":
        (run / "structure.xyz").unlink()
    _, [result] = endpoint.opened(packed)
    assert abs(structure_of(result).positions - atoms.positions).max() < 1e-7


def test_what_cannot_be_sent_is_refused_with_what_to_do(tmp_path):
    order = order_of(find_app("lj_argon").frozen(), tmp_path)
    wrong = {**order["settings"], "folders": [float("nan")]}
    with pytest.raises(BadInput, match=r"settings: folders\[0\] is nan"):
        pack(order | {"settings": wrong})
    with pytest.raises(BadInput, match="chain"):
        pack(order | {"account": dict})
    with pytest.raises(BadInput, match="nobody knows"):
        pack(order | {"novelty": 1})
    large = tmp_path / "large.data"
    with large.open("wb") as file:
        file.truncate(LARGEST + 1)
    paths = {"files": {"large.data": ""}, "paths": {"large.data": str(large)}}
    with pytest.raises(BadInput, match=r"large.data.*52 MB.*Globus Transfer"):
        pack(order | {"settings": order["settings"] | paths})
    (tmp_path / "deck").write_text("now")
    paths = {"files": {"deck": "0" * 64}, "paths": {"deck": str(tmp_path / "deck")}}
    with pytest.raises(AppFailed, match="deck: SHA-256 000000000000 recorded"):
        pack(order | {"settings": order["settings"] | paths})


def test_names_that_lead_out_of_the_campaigns_folder_are_refused_there(tmp_path, endpoint):
    order = order_of(find_app("eam_cu").frozen(), tmp_path)
    packed = pack(order)
    endpoint.take(packed.blobs)
    out = Packed({**packed.order, "manifest": {**order["manifest"], "execution_id": "../x"}}, [], {})
    with pytest.raises(BadInput, match="names no folder"):
        endpoint.opened(out)
    chosen = {"p": {"name": "p", "sha256": "0" * 64, "travels": {"sha256": "0" * 64, "name": "../p"}}}
    with pytest.raises(BadInput, match="no name of a file"):
        endpoint.opened(Packed({**packed.order, "chosen": chosen}, [], {}))
