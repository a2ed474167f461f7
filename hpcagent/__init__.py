"""Steered campaigns of simulations on Parsl: from an input script and a question to an answer with an error bar.

    import hpcagent as ha

    md = ha.lammps("in.my_system", variables={"timestep": ha.Float(0.5e-3, 8e-3, unit="ps")})
    limits = {"energy_fluctuation_1ps": ha.at_most(0.003)}
    campaign = ha.Campaign(md, ha.maximize("ns_per_day", subject_to=limits))
    print(ha.run(campaign, run_dir="runs/my_system").best)

Importing this package reads no file and starts nothing; each name is loaded when it is first used.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcagent.moved import find_moved_modules

__version__ = "0.1.0"

find_moved_modules()

# Public name -> the module that defines it.
_WHERE = {
    "App": "hpcagent.apps.base",
    "app": "hpcagent.apps.decorator",
    "AppFailed": "hpcagent.errors",
    "at_least": "hpcagent.model.objective",
    "at_most": "hpcagent.model.objective",
    "attach": "hpcagent.runs.attached",
    "BadInput": "hpcagent.errors",
    "Campaign": "hpcagent.campaign.record",
    "chain": "hpcagent.apps.chain",
    "Choice": "hpcagent.model.parameter",
    "Coordinator": "hpcagent.campaign.coordinator",
    "executable": "hpcagent.apps.executable.contract",
    "File": "hpcagent.model.parameter",
    "find_app": "hpcagent.catalog",
    "Float": "hpcagent.model.parameter",
    "gather": "hpcagent.campaign.awaited",
    "Int": "hpcagent.model.parameter",
    "lammps": "hpcagent.science.lammps.contract",
    "load_campaign": "hpcagent.campaign.loading",
    "maximize": "hpcagent.model.objective",
    "Metric": "hpcagent.model.contract",
    "minimize": "hpcagent.model.objective",
    "open_run": "hpcagent.runs.opened",
    "open_site": "hpcagent.sites.opening",
    "Outcome": "hpcagent.apps.run",
    "Policy": "hpcagent.policies.base",
    "Resources": "hpcagent.model.contract",
    "Result": "hpcagent.model.records",
    "Run": "hpcagent.apps.run",
    "run": "hpcagent.runs.run",
    "run_async": "hpcagent.campaign.awaited",
    "Space": "hpcagent.model.space",
    "submit": "hpcagent.elsewhere.submit",
    "Supervisor": "hpcagent.agents.supervisor",
    "Sweep": "hpcagent.campaign.sweep",
    "Text": "hpcagent.model.parameter",
    "tune": "hpcagent.tuning.tune",
    "watch": "hpcagent.campaign.view",
    "Workspace": "hpcagent.workspace.client",
}
_MODULES = (
    "apps",
    "contexts",
    "errors",
    "materials",
    "output",
    "policies",
    "resources",
    "runs",
    "types",
    "until",
)
# Names of before -> the module that has it, and what is written now.
_BEFORE = {
    "all_of": ("hpcagent.policies.stop_combined", "until.all_of"),
    "AllocationEnded": ("hpcagent.errors", "errors.AllocationEnded"),
    "any_of": ("hpcagent.policies.stop_combined", "until.any_of"),
    "archive": ("hpcagent.runs.archive", "open_run(folder).write_archive"),
    "Attached": ("hpcagent.runs.attached", "types.Attached"),
    "Batch": ("hpcagent.campaign.events", "types.Batch"),
    "BudgetSpent": ("hpcagent.errors", "errors.BudgetSpent"),
    "CampaignResult": ("hpcagent.campaign.answer", "types.CampaignResult"),
    "CampaignRun": ("hpcagent.runs.opened", "types.CampaignRun"),
    "compare": ("hpcagent.runs.compared", "runs.compare"),
    "Confirm": ("hpcagent.campaign.record", "types.Confirm"),
    "Contract": ("hpcagent.model.contract", "types.Contract"),
    "disk_use": ("hpcagent.runs.on_disk", "runs.disk_use"),
    "enqueue": ("hpcagent.campaign.enqueued", "open_run(folder).enqueue"),
    "Event": ("hpcagent.campaign.events", "types.Event"),
    "explain": ("hpcagent.reports.explain", "open_run(folder).explain"),
    "Explanation": ("hpcagent.reports.explanation", "types.Explanation"),
    "Failure": ("hpcagent.model.records", "types.Failure"),
    "fetch": ("hpcagent.runs.fetched", "open_run(folder).fetch"),
    "FetchFailed": ("hpcagent.errors", "errors.FetchFailed"),
    "Fidelity": ("hpcagent.campaign.record", "types.Fidelity"),
    "follow": ("hpcagent.runs.follow", "open_run(folder).follow"),
    "from_array": ("hpcagent.apps.executable.record", "output.from_array"),
    "from_column": ("hpcagent.apps.executable.record", "output.from_column"),
    "from_json": ("hpcagent.apps.executable.record", "output.from_json"),
    "from_regex": ("hpcagent.apps.executable.record", "output.from_regex"),
    "HpcAgentError": ("hpcagent.errors", "errors.HpcAgentError"),
    "InnerRun": ("hpcagent.model.records", "types.InnerRun"),
    "Interrupted": ("hpcagent.errors", "errors.Interrupted"),
    "list_runs": ("hpcagent.runs.listed", "runs.list_runs"),
    "make_policy": ("hpcagent.policies.base", "policies.make_policy"),
    "Manifest": ("hpcagent.model.records", "types.Manifest"),
    "max_runs": ("hpcagent.policies.stop_spent", "until.max_runs"),
    "no_feasible_point": ("hpcagent.policies.stop_infeasible", "until.no_feasible_point"),
    "node_hours": ("hpcagent.policies.stop_spent", "until.node_hours"),
    "NoSite": ("hpcagent.errors", "errors.NoSite"),
    "Objective": ("hpcagent.model.objective", "types.Objective"),
    "Observation": ("hpcagent.model.records", "types.Observation"),
    "plateau": ("hpcagent.policies.stop_reached", "until.plateau"),
    "read_run": ("hpcagent.campaign.answer", "open_run(folder).result"),
    "reap": ("hpcagent.sites.reap", "open_run(folder).reap"),
    "Reference": ("hpcagent.campaign.record", "types.Reference"),
    "Remote": ("hpcagent.model.records", "types.Remote"),
    "remove_run": ("hpcagent.runs.removed", "open_run(folder).remove"),
    "Replay": ("hpcagent.replays.regret", "types.Replay"),
    "replay": ("hpcagent.replays.whatif", "open_run(folder).replay"),
    "report": ("hpcagent.reports.report", "open_run(folder).report"),
    "Rule": ("hpcagent.campaign.alerts", "types.Rule"),
    "run_mpi": ("hpcagent.apps.ending", "apps.run_mpi"),
    "Site": ("hpcagent.sites.site", "types.Site"),
    "stop_run": ("hpcagent.runs.stopped", "open_run(folder).stop"),
    "SweepResult": ("hpcagent.campaign.sweep", "types.SweepResult"),
    "target": ("hpcagent.policies.stop_reached", "until.target"),
    "wall_time": ("hpcagent.policies.stop_spent", "until.wall_time"),
}

__all__ = sorted([*_WHERE, *_MODULES])

if TYPE_CHECKING:
    from hpcagent import apps as apps
    from hpcagent import contexts as contexts
    from hpcagent import errors as errors
    from hpcagent import materials as materials
    from hpcagent import output as output
    from hpcagent import policies as policies
    from hpcagent import resources as resources
    from hpcagent import runs as runs
    from hpcagent import types as types
    from hpcagent import until as until
    from hpcagent.agents.supervisor import Supervisor as Supervisor
    from hpcagent.apps.base import App as App
    from hpcagent.apps.chain import chain as chain
    from hpcagent.apps.decorator import app as app
    from hpcagent.apps.executable.contract import executable as executable
    from hpcagent.apps.run import Outcome as Outcome
    from hpcagent.apps.run import Run as Run
    from hpcagent.campaign.awaited import gather as gather
    from hpcagent.campaign.awaited import run_async as run_async
    from hpcagent.campaign.coordinator import Coordinator as Coordinator
    from hpcagent.campaign.loading import load_campaign as load_campaign
    from hpcagent.campaign.record import Campaign as Campaign
    from hpcagent.campaign.sweep import Sweep as Sweep
    from hpcagent.campaign.view import watch as watch
    from hpcagent.catalog import find_app as find_app
    from hpcagent.elsewhere.submit import submit as submit
    from hpcagent.errors import AppFailed as AppFailed
    from hpcagent.errors import BadInput as BadInput
    from hpcagent.model.contract import Metric as Metric
    from hpcagent.model.contract import Resources as Resources
    from hpcagent.model.objective import at_least as at_least
    from hpcagent.model.objective import at_most as at_most
    from hpcagent.model.objective import maximize as maximize
    from hpcagent.model.objective import minimize as minimize
    from hpcagent.model.parameter import Choice as Choice
    from hpcagent.model.parameter import File as File
    from hpcagent.model.parameter import Float as Float
    from hpcagent.model.parameter import Int as Int
    from hpcagent.model.parameter import Text as Text
    from hpcagent.model.records import Result as Result
    from hpcagent.model.space import Space as Space
    from hpcagent.policies.base import Policy as Policy
    from hpcagent.runs.attached import attach as attach
    from hpcagent.runs.opened import open_run as open_run
    from hpcagent.runs.run import run as run
    from hpcagent.science.lammps.contract import lammps as lammps
    from hpcagent.sites.opening import open_site as open_site
    from hpcagent.tuning.tune import tune as tune
    from hpcagent.workspace.client import Workspace as Workspace


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"hpcagent.{name}")
    if name in _BEFORE:
        module, now = _BEFORE[name]
        warnings.warn(f"hpcagent.{name} is hpcagent.{now} now", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'hpcagent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext hpcagent` in a notebook: the magics `%ask`, `%%ask` and `%page`."""
    for name in ("hpcagent.agents.magic", "hpcagent.web.magic"):
        import_module(name).register(shell)
