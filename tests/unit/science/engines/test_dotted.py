"""Any calculator by its dotted path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ase import Atoms

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Iteration, Level
from hpcagent.science.engines.registry import check, engine

ENGINE = engine("ase")
PAIR = Atoms("H2", [[0, 0, 0], [0, 0, 1.0]])


def calculator(reference: str, **keywords: Any) -> Any:
    options = {"calculator": reference, "keywords": keywords}
    return ENGINE.calculator(PAIR, Level("ase", options=options), Run(workdir=Path()))


@pytest.mark.parametrize(
    "reference", ["ase.calculators.morse:MorsePotential", "ase.calculators.morse.MorsePotential"]
)
def test_a_calculator_is_made_with_its_keywords(reference: str) -> None:
    made = calculator(reference, epsilon=2.0, r0=1.0, rho0=6.0)
    # A Morse potential is epsilon deep at r0.
    assert made.get_potential_energy(PAIR) == pytest.approx(-2.0)


@pytest.mark.parametrize(
    ("reference", "keywords", "kind", "name", "said"),
    [
        ("", {}, "contract", "BadSettings", "needs the dotted path"),
        ("MorsePotential", {}, "contract", "BadSettings", "needs the dotted path"),
        ("ase.calculators.morse:Mors", {}, "contract", "BadSettings", "has no calculator 'Mors'"),
        ("nowhere.at.all:Thing", {}, "infrastructure", "NoEngine", "'nowhere' cannot be imported"),
        ("ase.calculators.morse:MorsePotential", {"rho": 6}, "contract", "BadSettings", "no keyword 'rho'"),
        ("fractions:Fraction", {}, "contract", "BadSettings", "no ASE calculator"),
    ],
)
def test_what_is_no_calculator_is_refused(
    reference: str, keywords: dict[str, Any], kind: str, name: str, said: str
) -> None:
    with pytest.raises(AppFailed, match=said) as failed:
        calculator(reference, **keywords)
    assert (failed.value.kind, failed.value.name) == (kind, name)


def test_it_takes_no_parameter_of_a_level() -> None:
    with pytest.raises(AppFailed, match="it takes no parameters"):
        check(ENGINE, Level("ase", smearing=0.1))


def test_its_calculator_may_tell_of_its_scf() -> None:
    class Telling:
        iterations = ((-1.0, 0.5), (-1.1, 0.1))

    assert ENGINE.iterations(Telling()) == (Iteration(-1.0, 0.5), Iteration(-1.1, 0.1))
    assert ENGINE.iterations(object()) == ()
