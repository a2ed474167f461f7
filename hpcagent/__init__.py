"""Steered campaigns of simulations on Parsl: from an input script and a question to an answer with an error bar.

    import hpcagent as ha

    md = ha.lammps("in.my_system", variables={"timestep": ha.Float(0.5e-3, 8e-3, unit="ps")})
    limits = {"energy_fluctuation_1ps": ha.at_most(0.003)}
    campaign = ha.Campaign(md, ha.maximize("ns_per_day", subject_to=limits))
    print(ha.run(campaign, run_dir="runs/my_system").best)

Importing this package reads no file and starts nothing; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it.
_WHERE = {
    "AllocationEnded": "hpcagent.errors",
    "App": "hpcagent.apps.base",
    "AppFailed": "hpcagent.errors",
    "BadInput": "hpcagent.errors",
    "Attached": "hpcagent.campaign.attached",
    "Batch": "hpcagent.campaign.batch",
    "BudgetSpent": "hpcagent.errors",
    "Campaign": "hpcagent.campaign.record",
    "CampaignResult": "hpcagent.campaign.answer",
    "CampaignRun": "hpcagent.campaign.opened",
    "Choice": "hpcagent.model.space",
    "Confirm": "hpcagent.campaign.record",
    "Contract": "hpcagent.model.contract",
    "Coordinator": "hpcagent.campaign.coordinator",
    "FetchFailed": "hpcagent.errors",
    "Fidelity": "hpcagent.campaign.record",
    "Event": "hpcagent.campaign.batch",
    "Explanation": "hpcagent.campaign.explain",
    "Failure": "hpcagent.model.records",
    "File": "hpcagent.model.space",
    "Float": "hpcagent.model.space",
    "HpcAgentError": "hpcagent.errors",
    "Int": "hpcagent.model.space",
    "Interrupted": "hpcagent.errors",
    "InnerRun": "hpcagent.model.records",
    "Manifest": "hpcagent.model.records",
    "Metric": "hpcagent.model.contract",
    "NoSite": "hpcagent.errors",
    "Objective": "hpcagent.model.objective",
    "Observation": "hpcagent.model.records",
    "Outcome": "hpcagent.apps.run",
    "Reference": "hpcagent.campaign.record",
    "Remote": "hpcagent.model.records",
    "Replay": "hpcagent.campaign.regret",
    "Resources": "hpcagent.model.contract",
    "Result": "hpcagent.model.records",
    "Run": "hpcagent.apps.run",
    "Site": "hpcagent.sites.site",
    "Rule": "hpcagent.campaign.rules",
    "Space": "hpcagent.model.space",
    "Sweep": "hpcagent.campaign.sweep",
    "SweepResult": "hpcagent.campaign.sweep",
    "Text": "hpcagent.model.space",
    "all_of": "hpcagent.policies.stop",
    "any_of": "hpcagent.policies.stop",
    "app": "hpcagent.apps.base",
    "attach": "hpcagent.campaign.attached",
    "archive": "hpcagent.campaign.archive",
    "at_least": "hpcagent.model.objective",
    "at_most": "hpcagent.model.objective",
    "chain": "hpcagent.apps.chain",
    "executable": "hpcagent.apps.executable.contract",
    "compare": "hpcagent.campaign.compared",
    "disk_use": "hpcagent.campaign.disk_use",
    "enqueue": "hpcagent.campaign.enqueued",
    "explain": "hpcagent.campaign.explain",
    "fetch": "hpcagent.campaign.fetched",
    "find_app": "hpcagent.apps.catalog",
    "follow": "hpcagent.campaign.follow",
    "from_array": "hpcagent.apps.executable.record",
    "from_column": "hpcagent.apps.executable.record",
    "from_json": "hpcagent.apps.executable.record",
    "from_regex": "hpcagent.apps.executable.record",
    "gather": "hpcagent.campaign.awaited",
    "lammps": "hpcagent.apps.lammps.contract",
    "list_runs": "hpcagent.campaign.listed",
    "load_campaign": "hpcagent.campaign.record",
    "make_policy": "hpcagent.policies.base",
    "max_runs": "hpcagent.policies.stop",
    "maximize": "hpcagent.model.objective",
    "minimize": "hpcagent.model.objective",
    "no_feasible_point": "hpcagent.policies.stop",
    "node_hours": "hpcagent.policies.stop",
    "open_run": "hpcagent.campaign.opened",
    "open_site": "hpcagent.sites.opening",
    "plateau": "hpcagent.policies.stop",
    "read_run": "hpcagent.campaign.answer",
    "reap": "hpcagent.sites.reap",
    "remove_run": "hpcagent.campaign.removed",
    "replay": "hpcagent.campaign.whatif",
    "report": "hpcagent.campaign.report",
    "run": "hpcagent.campaign.run",
    "run_async": "hpcagent.campaign.awaited",
    "run_mpi": "hpcagent.apps.launch",
    "stop_run": "hpcagent.campaign.stopped",
    "submit": "hpcagent.campaign.submit",
    "target": "hpcagent.policies.stop",
    "tune": "hpcagent.campaign.tune",
    "wall_time": "hpcagent.policies.stop",
    "watch": "hpcagent.campaign.view",
}

__all__ = sorted([*_WHERE, "apps"])

if TYPE_CHECKING:
    from hpcagent import apps as apps
    from hpcagent.apps.base import App as App
    from hpcagent.apps.base import app as app
    from hpcagent.apps.catalog import find_app as find_app
    from hpcagent.apps.chain import chain as chain
    from hpcagent.apps.executable.contract import executable as executable
    from hpcagent.apps.executable.record import from_array as from_array
    from hpcagent.apps.executable.record import from_column as from_column
    from hpcagent.apps.executable.record import from_json as from_json
    from hpcagent.apps.executable.record import from_regex as from_regex
    from hpcagent.apps.lammps.contract import lammps as lammps
    from hpcagent.apps.launch import run_mpi as run_mpi
    from hpcagent.apps.run import Outcome as Outcome
    from hpcagent.apps.run import Run as Run
    from hpcagent.campaign.answer import read_run as read_run
    from hpcagent.campaign.archive import archive as archive
    from hpcagent.campaign.attached import Attached as Attached
    from hpcagent.campaign.attached import attach as attach
    from hpcagent.campaign.awaited import gather as gather
    from hpcagent.campaign.awaited import run_async as run_async
    from hpcagent.campaign.batch import Batch as Batch
    from hpcagent.campaign.batch import Event as Event
    from hpcagent.campaign.compared import compare as compare
    from hpcagent.campaign.coordinator import Coordinator as Coordinator
    from hpcagent.campaign.disk_use import disk_use as disk_use
    from hpcagent.campaign.enqueued import enqueue as enqueue
    from hpcagent.campaign.explain import Explanation as Explanation
    from hpcagent.campaign.explain import explain as explain
    from hpcagent.campaign.fetched import fetch as fetch
    from hpcagent.campaign.follow import follow as follow
    from hpcagent.campaign.listed import list_runs as list_runs
    from hpcagent.campaign.opened import CampaignRun as CampaignRun
    from hpcagent.campaign.opened import open_run as open_run
    from hpcagent.campaign.record import Campaign as Campaign
    from hpcagent.campaign.record import Confirm as Confirm
    from hpcagent.campaign.record import Fidelity as Fidelity
    from hpcagent.campaign.record import Reference as Reference
    from hpcagent.campaign.record import load_campaign as load_campaign
    from hpcagent.campaign.regret import Replay as Replay
    from hpcagent.campaign.removed import remove_run as remove_run
    from hpcagent.campaign.report import report as report
    from hpcagent.campaign.result import CampaignResult as CampaignResult
    from hpcagent.campaign.rules import Rule as Rule
    from hpcagent.campaign.run import run as run
    from hpcagent.campaign.stopped import stop_run as stop_run
    from hpcagent.campaign.submit import submit as submit
    from hpcagent.campaign.sweep import Sweep as Sweep
    from hpcagent.campaign.sweep import SweepResult as SweepResult
    from hpcagent.campaign.tune import tune as tune
    from hpcagent.campaign.view import watch as watch
    from hpcagent.campaign.whatif import replay as replay
    from hpcagent.errors import AllocationEnded as AllocationEnded
    from hpcagent.errors import AppFailed as AppFailed
    from hpcagent.errors import BadInput as BadInput
    from hpcagent.errors import BudgetSpent as BudgetSpent
    from hpcagent.errors import FetchFailed as FetchFailed
    from hpcagent.errors import HpcAgentError as HpcAgentError
    from hpcagent.errors import Interrupted as Interrupted
    from hpcagent.errors import NoSite as NoSite
    from hpcagent.model.contract import Contract as Contract
    from hpcagent.model.contract import Metric as Metric
    from hpcagent.model.contract import Resources as Resources
    from hpcagent.model.objective import Objective as Objective
    from hpcagent.model.objective import at_least as at_least
    from hpcagent.model.objective import at_most as at_most
    from hpcagent.model.objective import maximize as maximize
    from hpcagent.model.objective import minimize as minimize
    from hpcagent.model.records import Failure as Failure
    from hpcagent.model.records import InnerRun as InnerRun
    from hpcagent.model.records import Manifest as Manifest
    from hpcagent.model.records import Observation as Observation
    from hpcagent.model.records import Remote as Remote
    from hpcagent.model.records import Result as Result
    from hpcagent.model.space import Choice as Choice
    from hpcagent.model.space import File as File
    from hpcagent.model.space import Float as Float
    from hpcagent.model.space import Int as Int
    from hpcagent.model.space import Space as Space
    from hpcagent.model.space import Text as Text
    from hpcagent.policies.base import make_policy as make_policy
    from hpcagent.policies.stop import all_of as all_of
    from hpcagent.policies.stop import any_of as any_of
    from hpcagent.policies.stop import max_runs as max_runs
    from hpcagent.policies.stop import no_feasible_point as no_feasible_point
    from hpcagent.policies.stop import node_hours as node_hours
    from hpcagent.policies.stop import plateau as plateau
    from hpcagent.policies.stop import target as target
    from hpcagent.policies.stop import wall_time as wall_time
    from hpcagent.sites.opening import open_site as open_site
    from hpcagent.sites.reap import reap as reap
    from hpcagent.sites.site import Site as Site


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name == "apps":
        return import_module("hpcagent.apps")
    raise AttributeError(f"module 'hpcagent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
