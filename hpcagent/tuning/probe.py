"""What the first runs of a script as it came tell: its system, its speed, the error of its forces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcagent.science.lammps.knobs import System
from hpcagent.store.files import write_whole
from hpcagent.tuning.checks import SPEED

__all__ = ["Probe", "read_probe"]


@dataclass(frozen=True)
class Probe:
    """What the first runs of the script as it came tell.

    Attributes:
        system: Of which they are.
        steps: How long the timed runs are.
        metrics: Of a run of so many steps.
        wall_s: How long it took, with everything before the timed part.
    """

    system: System
    steps: int
    metrics: Mapping[str, float]
    wall_s: float

    @property
    def force_error(self) -> float | None:
        """The error of its forces, where it has long-range ones."""
        return self.metrics.get("force_error")

    @property
    def said(self) -> tuple[str, ...]:
        """In words."""
        m, s = self.metrics, self.system
        edges = " x ".join(f"{edge:.4g}" for edge in s.edges)
        lines = [f"{s.atoms} atoms, box {edges}, cutoff {s.cutoff:.4g}: {m[SPEED]:.4g} steps/s as it came"]
        if self.force_error is not None:
            lines.append(f"rms error of its forces: {self.force_error:.2e} of the rms force")
        if "dangerous_builds" not in m:
            lines.append(
                f"its {m.get('neighbor_builds', 0):.0f} neighbour builds are not checked (check no): whether any "
                "came too late is not known; every setting that is tried is checked"
            )
        elif m["dangerous_builds"]:
            lines.append(
                f"{m['dangerous_builds']:.0f} of its neighbour builds may have come too late (dangerous builds)"
            )
        return tuple(lines)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_whole(path, json.dumps(asdict(self) | {"metrics": dict(self.metrics)}, indent=1) + "\n")


def read_probe(path: Path) -> Probe | None:
    """The probe that was written; None where there is none."""
    if not path.is_file():
        return None
    data = json.loads(path.read_text())
    x, y, z = data["system"].pop("edges")
    return Probe(**(data | {"system": System(edges=(x, y, z), **data["system"])}))
