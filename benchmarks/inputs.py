"""What tuning gains over LAMMPS's defaults, at the same accuracy, for the packaged inputs.

    python benchmarks/inputs.py [NAME ...] [--runs 24] [--site laptop_alone] [--folder runs/inputs]

Runs the packaged campaign of each input (`silicon_tuning`, ...) with one run at a time and prints a table in Markdown.
LAMMPS's defaults run in every batch beside the others, and speeds are compared with that run of the same batch; at the
end the best point and the defaults, on one rank, are repeated. Only ranks, threads and settings vary that leave the
forces as they are, or (water) the share of the long-range forces that the solver computes at a fixed accuracy; a point counts only without dangerous
neighbour builds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import hpcagent as ha

CAMPAIGNS = ("silicon_tuning", "water_tuning", "polymer_tuning", "shear_tuning")


def row(name: str, *, runs: int, site: str, folder: Path) -> str:
    """Run one campaign, or go on with it, and say what it gave as a row of the table."""
    campaign = ha.load_campaign(name, changes={"until.max_runs": runs})
    found = ha.run(campaign, site=site, workers=1, run_dir=folder / name)
    if found.best is None:
        return f"| {campaign.app.name} | no answer | | |"
    point = ", ".join(
        f"{n} = {v:.3g}" if isinstance(v, float) else f"{n} = {v}" for n, v in found.best.params.items()
    )
    defaults = ", ".join(f"{n} = {v}" for n, v in campaign.confirm.baseline.items()) if campaign.confirm else ""
    over = next((s for s in found.speedups if s.same_accuracy), None)
    gains = "-" if over is None else f"{over.factor:.2f} ± {over.error:.2f}{over.estimated}"
    if campaign.confirm and all(found.best.params.get(n) == v for n, v in campaign.confirm.baseline.items()):
        point, gains = "the defaults", "1"
    return f"| {campaign.app.name} | {defaults} | {point} | {gains} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=CAMPAIGNS, help=f"of {', '.join(CAMPAIGNS)}")
    parser.add_argument("--runs", type=int, default=24, help="runs of each campaign")
    parser.add_argument("--site", default="laptop_alone")
    parser.add_argument("--folder", type=Path, default=Path("runs/inputs"))
    given = parser.parse_args()
    rows = [row(name, runs=given.runs, site=given.site, folder=given.folder) for name in given.names]
    print("| input | LAMMPS's defaults | found | speed over them |")
    print("|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
