"""MACE: machine-learned potentials from a checkpoint of one's own. Nothing is ever downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.packages import accepted, needs, no_bands, versions_of
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Iteration, Level

if TYPE_CHECKING:
    from ase import Atoms

    from hpcagent.apps.run import Run

__all__ = ["ENGINE", "MACEEngine"]

_DTYPES = ("float32", "float64")


class MACEEngine:
    """A MACE model in a process of its own.

    Settings: `checkpoint`, the path of a `.model` file (its content is part of a run's identity), and `keywords`,
    of which `device` is `cuda` where the run was given GPUs and `cpu` elsewhere, and `default_dtype` is `float64`
    if not given: single precision is faster, but its energies do not conserve well enough to measure a drift.

    A checkpoint is a pickle, and loading one runs the code in it: take it from people you trust.
    """

    name = "mace"
    kind: Literal["machine-learned"] = "machine-learned"
    isolated = True
    takes: tuple[str, ...] = ()

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """mace's own ASE calculator with the checkpoint."""
        path = str((run.settings.get("paths") or {}).get("checkpoint") or "")
        if not path:
            raise AppFailed(
                "engine 'mace' has no checkpoint, and none is downloaded; name a model file with "
                'with_settings(checkpoint="my.model").',
                kind="contract",
                name="BadSettings",
            )
        if not Path(path).is_file():
            raise AppFailed(
                f"the checkpoint {path} is not there where the run was placed.",
                kind="infrastructure",
                name="MissingFile",
                repair="put it on a file system that the site's nodes share",
            )
        keywords = dict(level.options.get("keywords") or {})
        dtype = keywords.setdefault("default_dtype", "float64")
        if dtype not in _DTYPES:
            raise AppFailed(
                f"default_dtype={dtype!r} is none of {', '.join(_DTYPES)}.", kind="contract", name="BadSettings"
            )
        how = "pip install 'hpcagent[mace]' (brings PyTorch, several GB)"
        torch = needs("torch", how)
        calculators = needs("mace.calculators", how)
        torch.set_num_threads(int(run.resources.get("threads_per_rank") or 1))
        gpus = int(run.resources.get("gpus_per_node") or 0)
        device = str(keywords.setdefault("device", "cuda" if gpus else "cpu"))
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise AppFailed(
                f"device={device!r}, but PyTorch {torch.__version__} sees no CUDA device where the run is.",
                kind="infrastructure",
                name="NoDevice",
                repair="gpus=1, so that the site gives the run a GPU, a PyTorch built for its CUDA, or device cpu",
            )
        try:
            calculator = accepted("MACECalculator", calculators.MACECalculator, keywords, model_paths=path)
        except AppFailed:
            raise
        except Exception as error:  # whatever unpickling something else comes to
            raise AppFailed(
                f"{Path(path).name} cannot be loaded as a MACE model: {type(error).__name__}: {error}.",
                kind="contract",
                name="BadSettings",
                repair="a checkpoint that this version of mace-torch has written, or can read",
            ) from None
        known = {int(z) for model in calculator.models for z in model.atomic_numbers}
        unknown = sorted({atom.symbol for atom in atoms if atom.number not in known})
        if unknown:
            raise AppFailed(
                f"the checkpoint {Path(path).name} was not trained on {', '.join(unknown)}.",
                kind="contract",
                name="BadSettings",
                repair="a checkpoint whose training data has these elements",
            )
        return calculator

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """None: there is no SCF."""
        return ()

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """None: there is no SCF."""
        return ()

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """The checkpoint."""
        path = str((level.options.get("paths") or {}).get("checkpoint") or "")
        return (Deciding("checkpoint", Path(path)),) if path else ()

    def versions(self, calculator: Any) -> dict[str, str]:
        """Of MACE and PyTorch."""
        return versions_of("mace-torch", "torch")

    def used(self, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
        """The model's file; its digest is among the result's files."""
        path = str((level.options.get("paths") or {}).get("checkpoint") or "")
        return {"model": Path(path).name}

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """No electrons, no bands."""
        raise no_bands(self.name)


ENGINE = MACEEngine()
