"""Engines are found by name, without their packages, and refuse what they would pass over."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.engines import registry
from hpcagent.science.engines.base import ENGINES, KPOINTS, Level


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_has_the_name_it_is_found_by(name: str) -> None:
    found = registry.engine(name)
    assert found.name == name
    assert set(found.takes) <= {"xc", "basis", "ecut", *KPOINTS, "smearing", "charge", "magmom", "tolerance"} | {
        "max_scf",
        "mixing",
    }
    assert not set(KPOINTS) & set(found.takes) or set(KPOINTS) <= set(found.takes)


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(AppFailed, match="did you mean 'pyscf'") as failed:
        registry.engine("pyscv")
    assert failed.value.kind == "contract"


def test_an_engine_whose_module_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._PLACES, "vasp", "not_there:ENGINE")
    with pytest.raises(AppFailed, match="no engine 'vasp'") as failed:
        registry.engine("vasp")
    assert (failed.value.kind, failed.value.name) == ("infrastructure", "NoEngine")


def test_finding_engines_imports_none_of_their_packages() -> None:
    code = (
        "import sys\n"
        "from hpcagent.science.engines.registry import engine\n"
        "for name in ('pyscf', 'tblite', 'mace', 'emt', 'lj', 'ase'): engine(name)\n"
        "print(sorted({'ase', 'pyscf', 'tblite', 'torch', 'mace', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_parameter_that_the_engine_does_not_take_is_refused_with_those_it_takes() -> None:
    with pytest.raises(AppFailed) as failed:
        registry.check(registry.engine("tblite"), Level("tblite", kpts=4, ecut=300.0))
    error = failed.value
    assert (error.kind, error.name) == ("contract", "BadSettings")
    assert "does not take ecut=300.0, kpts=4; it takes xc, smearing, charge" in error.message


def test_parameters_that_it_takes_and_defaults_pass() -> None:
    registry.check(registry.engine("tblite"), Level("tblite", xc="GFN1-xTB", smearing=0.1, repairs=4))
    registry.check(registry.engine("emt"), Level("emt", repairs=0))


def test_a_setting_that_the_engine_does_not_read_is_refused() -> None:
    options = {"keywords": {"epsilon": 1}, "pseudopotentials": {"Cu": "Cu.upf"}, "command": "", "checkpoint": ""}
    with pytest.raises(AppFailed, match=r"does not read the setting\(s\) pseudopotentials; it reads keywords"):
        registry.check(registry.engine("lj"), Level("lj", options=options))
