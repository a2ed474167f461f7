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
    "all_of": "hpcagent.policies.stop",
    "any_of": "hpcagent.policies.stop",
    "App": "hpcagent.apps.base",
    "app": "hpcagent.apps.base",
    "AppFailed": "hpcagent.errors",
    "at_least": "hpcagent.model.objective",
    "at_most": "hpcagent.model.objective",
    "attach": "hpcagent.runs.attached",
    "BadInput": "hpcagent.errors",
    "Campaign": "hpcagent.campaign.record",
    "chain": "hpcagent.apps.chain",
    "Choice": "hpcagent.model.space",
    "compare": "hpcagent.runs.compared",
    "Confirm": "hpcagent.campaign.record",
    "Coordinator": "hpcagent.campaign.coordinator",
    "disk_use": "hpcagent.runs.disk_use",
    "executable": "hpcagent.apps.executable.contract",
    "Fidelity": "hpcagent.campaign.record",
    "File": "hpcagent.model.space",
    "find_app": "hpcagent.catalog",
    "Float": "hpcagent.model.space",
    "from_array": "hpcagent.apps.executable.record",
    "from_column": "hpcagent.apps.executable.record",
    "from_json": "hpcagent.apps.executable.record",
    "from_regex": "hpcagent.apps.executable.record",
    "gather": "hpcagent.campaign.awaited",
    "HpcAgentError": "hpcagent.errors",
    "Int": "hpcagent.model.space",
    "lammps": "hpcagent.science.lammps.contract",
    "list_runs": "hpcagent.runs.listed",
    "load_campaign": "hpcagent.campaign.record",
    "max_runs": "hpcagent.policies.stop",
    "maximize": "hpcagent.model.objective",
    "Metric": "hpcagent.model.contract",
    "minimize": "hpcagent.model.objective",
    "no_feasible_point": "hpcagent.policies.stop",
    "node_hours": "hpcagent.policies.stop",
    "open_run": "hpcagent.runs.opened",
    "open_site": "hpcagent.sites.opening",
    "Outcome": "hpcagent.apps.run",
    "plateau": "hpcagent.policies.stop",
    "Policy": "hpcagent.policies.base",
    "Reference": "hpcagent.campaign.record",
    "Resources": "hpcagent.model.contract",
    "Result": "hpcagent.model.records",
    "Rule": "hpcagent.campaign.alerts",
    "Run": "hpcagent.apps.run",
    "run": "hpcagent.runs.run",
    "run_async": "hpcagent.campaign.awaited",
    "run_mpi": "hpcagent.apps.launch",
    "Space": "hpcagent.model.space",
    "submit": "hpcagent.elsewhere.submit",
    "Sweep": "hpcagent.campaign.sweep",
    "target": "hpcagent.policies.stop",
    "Text": "hpcagent.model.space",
    "tune": "hpcagent.tuning.tune",
    "wall_time": "hpcagent.policies.stop",
    "watch": "hpcagent.campaign.view",
}
_MODULES = ("apps", "errors", "policies", "types")
# Names of before -> the module that has it, and what is written now.
_BEFORE = {
    "AllocationEnded": ("hpcagent.errors", "errors.AllocationEnded"),
    "archive": ("hpcagent.runs.archive", "open_run(folder).write_archive"),
    "Attached": ("hpcagent.runs.attached", "types.Attached"),
    "Batch": ("hpcagent.campaign.events", "types.Batch"),
    "BudgetSpent": ("hpcagent.errors", "errors.BudgetSpent"),
    "CampaignResult": ("hpcagent.campaign.answer", "types.CampaignResult"),
    "CampaignRun": ("hpcagent.runs.opened", "types.CampaignRun"),
    "Contract": ("hpcagent.model.contract", "types.Contract"),
    "enqueue": ("hpcagent.campaign.enqueued", "open_run(folder).enqueue"),
    "Event": ("hpcagent.campaign.events", "types.Event"),
    "explain": ("hpcagent.reports.explain", "open_run(folder).explain"),
    "Explanation": ("hpcagent.reports.explain", "types.Explanation"),
    "Failure": ("hpcagent.model.records", "types.Failure"),
    "fetch": ("hpcagent.runs.fetched", "open_run(folder).fetch"),
    "FetchFailed": ("hpcagent.errors", "errors.FetchFailed"),
    "follow": ("hpcagent.runs.follow", "open_run(folder).follow"),
    "InnerRun": ("hpcagent.model.records", "types.InnerRun"),
    "Interrupted": ("hpcagent.errors", "errors.Interrupted"),
    "make_policy": ("hpcagent.policies.base", "policies.make_policy"),
    "Manifest": ("hpcagent.model.records", "types.Manifest"),
    "NoSite": ("hpcagent.errors", "errors.NoSite"),
    "Objective": ("hpcagent.model.objective", "types.Objective"),
    "Observation": ("hpcagent.model.records", "types.Observation"),
    "read_run": ("hpcagent.campaign.answer", "open_run(folder).result"),
    "reap": ("hpcagent.sites.reap", "open_run(folder).reap"),
    "Remote": ("hpcagent.model.records", "types.Remote"),
    "remove_run": ("hpcagent.runs.removed", "open_run(folder).remove"),
    "Replay": ("hpcagent.replays.regret", "types.Replay"),
    "replay": ("hpcagent.replays.whatif", "open_run(folder).replay"),
    "report": ("hpcagent.reports.report", "open_run(folder).report"),
    "Site": ("hpcagent.sites.site", "types.Site"),
    "stop_run": ("hpcagent.runs.stopped", "open_run(folder).stop"),
    "SweepResult": ("hpcagent.campaign.sweep", "types.SweepResult"),
}

__all__ = sorted([*_WHERE, *_MODULES])

if TYPE_CHECKING:
    from hpcagent import apps as apps
    from hpcagent import errors as errors
    from hpcagent import policies as policies
    from hpcagent import types as types
    from hpcagent.apps.base import App as App
    from hpcagent.apps.base import app as app
    from hpcagent.apps.chain import chain as chain
    from hpcagent.apps.executable.contract import executable as executable
    from hpcagent.apps.executable.record import from_array as from_array
    from hpcagent.apps.executable.record import from_column as from_column
    from hpcagent.apps.executable.record import from_json as from_json
    from hpcagent.apps.executable.record import from_regex as from_regex
    from hpcagent.apps.launch import run_mpi as run_mpi
    from hpcagent.apps.run import Outcome as Outcome
    from hpcagent.apps.run import Run as Run
    from hpcagent.campaign.alerts import Rule as Rule
    from hpcagent.campaign.awaited import gather as gather
    from hpcagent.campaign.awaited import run_async as run_async
    from hpcagent.campaign.coordinator import Coordinator as Coordinator
    from hpcagent.campaign.record import Campaign as Campaign
    from hpcagent.campaign.record import Confirm as Confirm
    from hpcagent.campaign.record import Fidelity as Fidelity
    from hpcagent.campaign.record import Reference as Reference
    from hpcagent.campaign.record import load_campaign as load_campaign
    from hpcagent.campaign.sweep import Sweep as Sweep
    from hpcagent.campaign.view import watch as watch
    from hpcagent.catalog import find_app as find_app
    from hpcagent.elsewhere.submit import submit as submit
    from hpcagent.errors import AppFailed as AppFailed
    from hpcagent.errors import BadInput as BadInput
    from hpcagent.errors import HpcAgentError as HpcAgentError
    from hpcagent.model.contract import Metric as Metric
    from hpcagent.model.contract import Resources as Resources
    from hpcagent.model.objective import at_least as at_least
    from hpcagent.model.objective import at_most as at_most
    from hpcagent.model.objective import maximize as maximize
    from hpcagent.model.objective import minimize as minimize
    from hpcagent.model.records import Result as Result
    from hpcagent.model.space import Choice as Choice
    from hpcagent.model.space import File as File
    from hpcagent.model.space import Float as Float
    from hpcagent.model.space import Int as Int
    from hpcagent.model.space import Space as Space
    from hpcagent.model.space import Text as Text
    from hpcagent.policies.base import Policy as Policy
    from hpcagent.policies.stop import all_of as all_of
    from hpcagent.policies.stop import any_of as any_of
    from hpcagent.policies.stop import max_runs as max_runs
    from hpcagent.policies.stop import no_feasible_point as no_feasible_point
    from hpcagent.policies.stop import node_hours as node_hours
    from hpcagent.policies.stop import plateau as plateau
    from hpcagent.policies.stop import target as target
    from hpcagent.policies.stop import wall_time as wall_time
    from hpcagent.runs.attached import attach as attach
    from hpcagent.runs.compared import compare as compare
    from hpcagent.runs.disk_use import disk_use as disk_use
    from hpcagent.runs.listed import list_runs as list_runs
    from hpcagent.runs.opened import open_run as open_run
    from hpcagent.runs.run import run as run
    from hpcagent.science.lammps.contract import lammps as lammps
    from hpcagent.sites.opening import open_site as open_site
    from hpcagent.tuning.tune import tune as tune


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
