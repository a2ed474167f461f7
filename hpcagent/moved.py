"""Names and modules that have moved: they are found at their old places too, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # it takes 8 ms to load
    from importlib.abc import Loader

__all__ = ["MODULES", "find_moved_modules", "first_name", "moved", "new_name"]

MODULES = {
    "hpcagent.apps.analysis": "hpcagent.science.analysis",
    "hpcagent.apps.analysis.statistics": "hpcagent.statistics.timeseries",
    "hpcagent.apps.analysis.trajectory": "hpcagent.science.lammps.trajectory",
    "hpcagent.apps.build": "hpcagent.science.structures",
    "hpcagent.apps.catalog": "hpcagent.catalog",
    "hpcagent.apps.chains": "hpcagent.science.chains",
    "hpcagent.apps.dft": "hpcagent.science.dft",
    "hpcagent.apps.engines": "hpcagent.science.engines",
    "hpcagent.apps.engines.packages": "hpcagent.apps.packages",
    "hpcagent.apps.isolated": "hpcagent.science.engines.isolated",
    "hpcagent.apps.lammps": "hpcagent.science.lammps",
    "hpcagent.apps.mlip": "hpcagent.science.mlip",
    "hpcagent.apps.plots": "hpcagent.science.plots",
    "hpcagent.campaign.archive": "hpcagent.runs.archive",
    "hpcagent.campaign.attached": "hpcagent.runs.attached",
    "hpcagent.campaign.batch": "hpcagent.campaign.events",
    "hpcagent.campaign.compared": "hpcagent.runs.compared",
    "hpcagent.campaign.detach": "hpcagent.elsewhere.detach",
    "hpcagent.campaign.disk_use": "hpcagent.runs.on_disk",
    "hpcagent.campaign.explain": "hpcagent.reports.explain",
    "hpcagent.campaign.fetched": "hpcagent.runs.fetched",
    "hpcagent.campaign.follow": "hpcagent.runs.follow",
    "hpcagent.campaign.html_report": "hpcagent.reports.html_report",
    "hpcagent.campaign.inner": "hpcagent.campaign.chain_runs",
    "hpcagent.campaign.late": "hpcagent.campaign.slow_runs",
    "hpcagent.campaign.learned": "hpcagent.reports.lessons",
    "hpcagent.campaign.listed": "hpcagent.runs.listed",
    "hpcagent.campaign.masking": "hpcagent.runs.masking",
    "hpcagent.campaign.model_plots": "hpcagent.reports.model_plots",
    "hpcagent.campaign.opened": "hpcagent.runs.opened",
    "hpcagent.campaign.plan": "hpcagent.campaign.dry_run",
    "hpcagent.campaign.played": "hpcagent.campaign.decisions",
    "hpcagent.campaign.plots": "hpcagent.reports.plots",
    "hpcagent.campaign.regret": "hpcagent.replays.regret",
    "hpcagent.campaign.removed": "hpcagent.runs.removed",
    "hpcagent.campaign.report": "hpcagent.reports.report",
    "hpcagent.campaign.rules": "hpcagent.campaign.alerts",
    "hpcagent.campaign.run": "hpcagent.runs.run",
    "hpcagent.campaign.status": "hpcagent.runs.status",
    "hpcagent.campaign.stopped": "hpcagent.runs.stopped",
    "hpcagent.campaign.submit": "hpcagent.elsewhere.submit",
    "hpcagent.campaign.sweep_plots": "hpcagent.reports.sweep_plots",
    "hpcagent.campaign.sweep_report": "hpcagent.reports.sweep_report",
    "hpcagent.campaign.tune": "hpcagent.tuning.tune",
    "hpcagent.campaign.tune_asked": "hpcagent.tuning.asked",
    "hpcagent.campaign.tune_probe": "hpcagent.tuning.probe",
    "hpcagent.campaign.tune_tables": "hpcagent.tuning.tables",
    "hpcagent.campaign.tune_work": "hpcagent.tuning.work",
    "hpcagent.campaign.tuned": "hpcagent.tuning.tuned",
    "hpcagent.campaign.tuned_checks": "hpcagent.tuning.checks",
    "hpcagent.campaign.tuned_site": "hpcagent.tuning.site",
    "hpcagent.campaign.unpacked": "hpcagent.runs.unpacked",
    "hpcagent.campaign.whatif": "hpcagent.replays.whatif",
    "hpcagent.campaign.world": "hpcagent.replays.world",
    "hpcagent.policies.acquisition": "hpcagent.statistics.acquisition",
    "hpcagent.policies.failures": "hpcagent.statistics.failures",
    "hpcagent.policies.gp": "hpcagent.statistics.gp",
    "hpcagent.policies.insight": "hpcagent.statistics.insight",
    "hpcagent.policies.missed": "hpcagent.statistics.missed",
    "hpcagent.policies.points": "hpcagent.statistics.points",
    "hpcagent.policies.ranking": "hpcagent.statistics.ranking",
    "hpcagent.policies.recommend": "hpcagent.statistics.recommend",
    "hpcagent.policies.replicates": "hpcagent.statistics.replicates",
    "hpcagent.policies.rules": "hpcagent.policies.quality_first",
    "hpcagent.policies.sensitivity": "hpcagent.statistics.sensitivity",
    "hpcagent.policies.surest": "hpcagent.statistics.surest",
    "hpcagent.policies.surrogate": "hpcagent.statistics.surrogate",
    "hpcagent.policies.trend": "hpcagent.statistics.trend",
    "hpcagent.policies.uneven": "hpcagent.statistics.uneven",
    "hpcagent.sites.batch": "hpcagent.sites.workers.batch",
    "hpcagent.sites.blocks": "hpcagent.sites.workers.blocks",
    "hpcagent.sites.executor": "hpcagent.sites.workers.executor",
    "hpcagent.sites.htex": "hpcagent.sites.workers.local",
    "hpcagent.sites.interchange": "hpcagent.sites.workers.interchange",
    "hpcagent.sites.pbs_blocks": "hpcagent.sites.workers.pbs_blocks",
    "hpcagent.sites.plain": "hpcagent.sites.workers.wire",
    "hpcagent.sites.room": "hpcagent.sites.workers.placement",
    "hpcagent.sites.slurm_blocks": "hpcagent.sites.workers.slurm_blocks",
    "hpcagent.sites.turns": "hpcagent.sites.workers.fair_share",
    "hpcagent.sites.worker_pool": "hpcagent.sites.workers.worker_pool",
}
"""Old name of a module or package -> where it is now."""

_STAYED = "hpcagent.apps."
# The rooms whose functions are apps that come along.
_APPS = {
    new: old for old, new in MODULES.items() if old.startswith(_STAYED) and new.startswith("hpcagent.science.")
}


def new_name(module: str) -> str:
    """Where a module is now; its own name where it has not moved.

    Example:
        >>> new_name("hpcagent.apps.lammps.log"), new_name("hpcagent.apps.run")
        ('hpcagent.science.lammps.log', 'hpcagent.apps.run')
    """
    return _renamed(module, MODULES)


def first_name(module: str) -> str:
    """The first name of a module: it stands in records, orders and execution ids, whatever it is called now.

    Example:
        >>> first_name("hpcagent.science.dft.energy"), first_name("mine")
        ('hpcagent.apps.dft.energy', 'mine')
    """
    return _renamed(module, _APPS) if module.startswith("hpcagent.") else module


def _renamed(module: str, names: Mapping[str, str]) -> str:
    known = module
    while known not in names:
        known, dot, _ = known.rpartition(".")
        if not dot:
            return module
    return names[known] + module[len(known) :]


class _Finder:
    """Finds modules by their old names: the same modules, imported once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("hpcagent."):
            return None
        new = new_name(fullname)
        return None if new == fullname else ModuleSpec(fullname, cast("Loader", _Loader(new)))


class _Loader:
    def __init__(self, new: str) -> None:
        self._new = new
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"the module {spec.name} is {self._new} now", DeprecationWarning, stacklevel=2)
        found = import_module(self._new)
        self._spec = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # that of the old name was put in its place

    def get_source(self, fullname: str) -> str | None:
        return self._found().get_source(self._new)  # type: ignore[no-any-return]

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        return self._found().get_code(self._new)  # type: ignore[no-any-return]

    def _found(self) -> Any:
        spec = find_spec(self._new)
        assert spec is not None
        return spec.loader


def find_moved_modules() -> None:
    """From now on modules are found by their old names, too."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def moved(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module from which names have moved.

    Args:
        module: Its name.
        names: Name -> module that has it now.

    Example:
        >>> look = moved("hpcagent.old", {"max_runs": "hpcagent.policies.stop_spent"})
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     look("max_runs").__name__, str(told[0].message)
        ('max_runs', 'hpcagent.old.max_runs is hpcagent.policies.stop_spent.max_runs now')
    """

    def found(name: str) -> Any:  # whatever has this name
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is {names[name]}.{name} now", DeprecationWarning, stacklevel=2)
        return getattr(import_module(names[name]), name)

    return found
