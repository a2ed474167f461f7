"""Takes the pictures of `docs/gallery.md` from finished campaigns: python docs/gallery.py RUNS

RUNS is a folder with one finished run directory for each campaign of `PICTURES`, e.g. after `hpcagent run si_eos`.
Their reports are written anew first.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import hpcagent as ha

TO = Path(__file__).resolve().parent / "images" / "gallery"

# Campaign -> what of it is shown: a picture of its report, or the app whose plot is.
PICTURES = {
    "lj_tuning": ("best_run.png", "slices.png"),
    "dft_convergence": ("plane.png", "slices.png"),
    "si_eos": ("plot_eos",),
    "argon_melt": ("slices.png", "plot_msd"),
    "water_box": ("plot_rdf", "slices.png"),
    "catalyst_screening": ("progress.png",),
}


def picture(run_dir: Path, what: str) -> Path:
    """The file of a report's picture, or the plot of the app's first run."""
    if what.endswith(".png"):
        return run_dir / "report" / what
    for manifest in sorted(run_dir.glob("work/*/manifest.json")):
        plot = manifest.with_name("plot.png")
        if json.loads(manifest.read_text())["app"] == what and plot.exists():
            return plot
    raise SystemExit(f"{run_dir} has no plot of {what}")


def main() -> None:
    """Write all pictures."""
    TO.mkdir(parents=True, exist_ok=True)
    for name, wanted in PICTURES.items():
        run_dir = Path(sys.argv[1]) / name
        ha.open_run(run_dir).report()
        for i, what in enumerate(wanted, 1):
            shutil.copyfile(picture(run_dir, what), TO / f"{name}_{i}.png")


if __name__ == "__main__":
    main()
