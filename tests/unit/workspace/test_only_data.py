"""What a client that may not name code or files can say: no door lets a text reach one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcagent.catalog import find_app
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.only_data import check_only_data

CODE = "#BASIS SET\nCu  S\n 1.0 open('{mark}','w').write('x')\nO  S\n 1.0 open('{mark}','w').write('x')\nEND\n"


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    Folder(tmp_path / "ws").create()
    (tmp_path / "ws" / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n')
    one = Core(tmp_path / "ws")
    yield one
    one.close()


@pytest.mark.parametrize(
    "text",
    [
        "manifest.json",
        "result",
        "C S\n1 open('m')",
        "a/b",
        "../x",
        "~ada/x",
        "x\\y",
        "log.txt@3s2p",
        ".",
        ".netrc",
    ],
)
def test_a_text_that_could_name_a_file_is_refused(text):
    if text == "result":  # a word is none: the engine itself takes no file for it
        check_only_data(find_app("dft_energy"), {"basis": text}, {})
        return
    with pytest.raises(NotAllowed, match="could name one"):
        check_only_data(find_app("dft_energy"), {"basis": text}, {})


@pytest.mark.parametrize(
    ("app", "params"),
    [
        ("dft_energy", {"basis": "6-311++G(3df,3pd)", "xc": ".8*LDA + 0.2*HF, lyp", "mesh": "8x8x6"}),
        ("smiles_to_xyz", {"smiles": "F/C=C/F"}),
        ("calculate", {"expression": "1/2 + sin(pi)"}),
        ("plot_data", {"x": "[0.1, 1e3]", "y_unit": "g/cm^3", "title": "p. Fig 2"}),
        ("plot_eos", {"title": "a/b"}),
        ("query_materials_database", {"source": "https://example.org/optimade", "formula": "Cu-ZnO"}),
        ("active_learning", {"volumes": "0.97,1,1.03"}),
        ("magnetic_ordering", {"moments": "Fe:3 Cr:2.5"}),
        ("packmol_box", {"counts": "artifact:r-1/x"}),
    ],
)
def test_words_and_what_is_data_pass(app, params):
    check_only_data(find_app(app), params, {})


def test_every_text_of_a_packaged_contract_has_a_default_that_passes():
    from hpcagent.catalog import list_apps

    for app in list_apps():
        for one in app.contract.space.parameters:
            if isinstance(one.default, str):
                check_only_data(app, {one.name: one.default}, {})


def test_a_catalyst_names_no_file_either(core, tmp_path):
    mark, basis = tmp_path / "mark", tmp_path / "basis"
    basis.write_text(CODE.format(mark=mark))
    me = core.caller(os.getuid())
    for more in ({"basis": str(basis), "kpts": 1}, {"basis": "manifest.json"}, {"xc": CODE}):
        with pytest.raises(NotAllowed, match="file of this machine"):
            core.catalyst(me, structure="Cu", adsorbate="O", parameters={"engine": "pyscf", **more})
    with pytest.raises(NotAllowed, match="element"):
        core.catalyst(me, structure=str(basis), adsorbate="O")
    assert not core.rows and not mark.exists()
