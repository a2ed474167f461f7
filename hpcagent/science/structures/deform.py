"""A structure under strain."""

from __future__ import annotations

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import read_structure, write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float
from hpcagent.science.structures.crystal import SIZE, size

__all__ = ["deform"]


@app(
    name="deform",
    version="1.0.1",
    inputs=("structure",),
    parameters={
        "volume_ratio": Float(0.1, 10.0, default=1.0, description="volume over that of the input, without shape"),
        **{
            f"e{i}": Float(-0.5, 0.5, default=0.0, description=f"Voigt strain, {of}")
            for i, of in enumerate(("xx", "yy", "zz", "2 yz", "2 xz", "2 xy"), 1)
        },
    },
    metrics=SIZE
    | {"volume_change": Metric(name="volume_change", unit="1", description="volume over that of the input")},
    failure_modes=("NoStructure", "NoCell"),
    estimated_runtime_s=0.05,
    seeded=False,
)
def deform(
    volume_ratio: float, e1: float, e2: float, e3: float, e4: float, e5: float, e6: float, run: Run
) -> Outcome:
    """The structure with its cell and atoms deformed: x -> r^(1/3) (1 + e) x.

    e has the Voigt components e1 ... e6; e4, e5, e6 are twice the tensor's (J. F. Nye, Physical Properties of
    Crystals, 1957).

    Raises:
        AppFailed: `NoStructure`; `NoCell`: the input does not fill space, so it has no volume.
    """
    import numpy as np

    atoms = read_structure(run)
    if atoms.cell.rank < 3:
        raise AppFailed(
            f"the input has {atoms.cell.rank} cell vectors; only a structure with three can be strained.",
            kind="contract",
            name="NoCell",
        )
    before = atoms.get_volume()
    tensor = np.array([[e1, e6 / 2, e5 / 2], [e6 / 2, e2, e4 / 2], [e5 / 2, e4 / 2, e3]])
    deformation = volume_ratio ** (1 / 3) * (np.eye(3) + tensor)
    atoms.calc = None
    atoms.set_cell(atoms.cell @ deformation, scale_atoms=True)
    metrics = size(atoms) | {"volume_change": float(atoms.get_volume() / before)}
    return Outcome(metrics=metrics, artifacts=write_structure(run, atoms))
