"""Prompts: what a person can ask for by name, with the workspace's own data in them."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Message, Prompt, UserMessage
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CompleteResult, Completion, InputRequiredResult
from pydantic import Field

from hpcagent.campaign.loading import list_configs
from hpcagent.errors import HpcAgentError
from hpcagent.mcp.callers import Caller, caller_now
from hpcagent.mcp.said import DATA, clean, clean_text
from hpcagent.mcp.threads import in_thread
from hpcagent.model.contract import Contract

__all__ = [
    "PROMPTS",
    "add_prompts",
    "analyze_trends",
    "converge_my_dft",
    "generate_experiment_plan",
    "tune_my_input",
    "what_happened_in_this_campaign",
    "write_a_tool",
]

LONGEST = 2000
"""Characters of one argument."""
MOST_VALUES = 100
MOST_RUNS = 50
WAIT_S = 0.5
RULES = (
    "A number counts only with the run_id or campaign_id that it came from; give its unit and its error. Say what "
    "you do not know. Before anything runs: estimate, and say what it would take. Where a person has to approve, "
    "wait for them."
)

CampaignArgument = Annotated[str, Field(description="Handle of a campaign, c-....")]


def analyze_trends(
    caller: Caller,
    app: Annotated[str, Field(description="Only runs of this app; empty: of all apps.")] = "",
    metric: Annotated[str, Field(description="The metric to look at; empty: those that the runs have.")] = "",
) -> list[Message]:
    """What the runs so far say: how metrics depend on parameters, with errors, and what is not known."""
    found = caller.workspace.list(app=app, state="completed", most=MOST_RUNS)["runs"]
    runs = [{k: one[k] for k in ("id", "app", "site", "params", "metrics")} for one in found if one["metrics"]]
    what = f"the metric {_quoted(metric)}" if metric else "their metrics"
    where = f"the app {_quoted(app)}" if app else "each app by itself"
    return [
        UserMessage(
            f"How do {what} depend on the parameters? Look at the runs below, {where}.\n"
            "1. describe_app gives units and meaning; get_status of a run its uncertainty.\n"
            "2. For each trend: which parameter, in which range, how large against the error, of how many runs. "
            "Name runs that do not fit. One run at each end is no trend.\n"
            "3. Say which run would decide most of what is open, and what estimate says that it takes.\n"
            f"{RULES}"
        ),
        _data({"runs": runs, "newest_only": len(found) == MOST_RUNS}),
    ]


def generate_experiment_plan(
    caller: Caller,
    goal: Annotated[str, Field(description="What is to be found out, with numbers and units.")],
    materials: Annotated[str, Field(description="Materials, with commas between them; empty: open.")] = "",
) -> list[Message]:
    """A plan of runs and campaigns towards a goal: hypotheses, controls, node-hours, when to stop."""
    listed = [one.strip() for one in materials.split(",") if one.strip()]
    apps = [{"name": one["name"], "description": one["description"]} for one in caller.workspace.apps()]
    campaigns = sorted(list_configs())
    of = f" for {', '.join(map(_quoted, listed))}" if listed else ""
    return [
        UserMessage(
            f"Make a plan of simulations{of}. The goal: {_quoted(goal)}\n"
            "1. Which question has to be answered, by which metric, with which error? What would refute it?\n"
            "2. Look first at what is there: list_runs, and query_database where the server has it. Do not run "
            "again what was run.\n"
            "3. For each step: app (of those below), parameters with units, what is varied and what is held, a "
            "control or reference, how often it is repeated, and what it takes (estimate, estimate_campaign).\n"
            "4. The order, what each step depends on, and at which result you stop or go another way.\n"
            "5. The whole in node-hours, and what a person would have to approve. Run nothing yet.\n"
            f"{RULES}"
        ),
        _data({"apps": apps, "packaged_campaigns": campaigns}),
    ]


def tune_my_input(
    caller: Caller,
    app: Annotated[str, Field(description="The app whose settings are tuned, e.g. lj_argon.")],
    goal: Annotated[
        str, Field(description="E.g. most ns_per_day while energy_fluctuation_1ps is at most 0.0025.")
    ] = "",
    site: Annotated[str, Field(description="Where it runs; empty: the workspace's default site.")] = "",
    max_runs: Annotated[str, Field(description="Runs at most, a whole number.")] = "24",
) -> list[Message]:
    """Find the fastest settings of an input that keep its accuracy: timestep, skin, accelerator and the like."""
    runs = _whole("max_runs", max_runs, 1, 10_000)
    card = _app_card(caller, app)
    asked = f"The goal: {_quoted(goal)}" if goal else "The goal: the fastest settings at the accuracy it has now."
    where = f" on the site {_quoted(site)}" if site else ""
    return [
        UserMessage(
            f"Tune the app {card['name']}{where}. {asked}\n"
            "1. Of the contract below: which metric is speed, which is accuracy, which parameters may be varied. "
            "An objective without a limit on accuracy is wrong.\n"
            "2. Take a packaged campaign of this app if there is one (list_packaged_campaigns), else write one: "
            "objective with subject_to, space, reference.params (the settings of now, run in every batch), policy "
            f"quality_first or bayes, confirm, until.max_runs = {runs}.\n"
            "3. estimate_campaign; say node-hours and whether a person has to approve. Then start_campaign.\n"
            "4. get_campaign until it has ended. Report the best settings with errors, P(feasible), expected "
            "regret, how much faster than the reference, and explain_run for the run that decided it.\n"
            f"{RULES}"
        ),
        _data({"contract": card}),
    ]


def converge_my_dft(
    caller: Caller,
    material: Annotated[str, Field(description="Element or formula, e.g. Si.")],
    tolerance_mev_per_atom: Annotated[
        str, Field(description="How far the energy may be from the converged one, in meV/atom.")
    ] = "1",
    engine: Annotated[str, Field(description="espresso, gpaw, ...; empty: what the site has.")] = "",
    site: Annotated[str, Field(description="Where it runs; empty: the workspace's default site.")] = "",
) -> list[Message]:
    """The cheapest cutoff and k-mesh whose energy is converged to within a tolerance."""
    limit = _positive("tolerance_mev_per_atom", tolerance_mev_per_atom)
    card = _app_card(caller, "dft_convergence")
    with_ = f" with the engine {_quoted(engine)}" if engine else ""
    where = f" on the site {_quoted(site)}" if site else ""
    return [
        UserMessage(
            f"Find the cheapest cutoff and k-mesh of {_quoted(material)} whose energy is within {limit:g} "
            f"meV/atom of the converged one{with_}{where}.\n"
            "1. The packaged campaign dft_convergence does this for silicon: minimise work, error at most the "
            "tolerance, policy staircase. Change fixed.name, fixed.a (lattice constant, angstrom), "
            f"objective.subject_to.error.at_most = {limit:g}, and the ranges of ecut (eV) and kpts; "
            "converged_ecut and converged_kpts have to lie well above them. A metal needs smearing.\n"
            "2. estimate_campaign, then start_campaign. A pseudopotential that the site does not have is a "
            "failure that says so: ask the person for one.\n"
            "3. get_campaign until it has ended; report ecut, kpts, the error with its uncertainty, what the next "
            "cheaper point misses, and whether the reference itself is converged (one run beyond it).\n"
            f"{RULES}"
        ),
        _data({"contract": card}),
    ]


def what_happened_in_this_campaign(caller: Caller, campaign_id: CampaignArgument) -> list[Message]:
    """What a campaign asked, what it found and how sure that is, what failed, and what would come next."""
    found = caller.workspace.campaign(campaign_id.strip(), timeout_s=WAIT_S)
    return [
        UserMessage(
            f"What happened in the campaign {found['id']}? Its data as of now is below.\n"
            "1. In a few sentences: the question, how many runs, whether it has ended and why.\n"
            "2. The answer: best point with units, errors, P(feasible), what it is compared with, expected "
            "regret. If answer is null, get_campaign once more: it is worked out in the background.\n"
            "3. What failed or was odd: list_artifacts and the report (make_report); explain_run for the run that "
            "decided the answer and for one that disappointed.\n"
            "4. What you would do next (recommend_points), and what it takes.\n"
            f"{RULES}"
        ),
        _data(found),
    ]


def _campaigns(caller: Caller) -> list[str]:
    runs = caller.workspace.list(most=1000)["runs"]
    return [one["id"] for one in runs if one["kind"] == "campaign"]


def _apps(caller: Caller) -> list[str]:
    return sorted(one["name"] for one in caller.workspace.apps())


def _metrics(caller: Caller) -> list[str]:
    runs = caller.workspace.list(state="completed", most=1000)["runs"]
    return sorted({name for one in runs for name in one["metrics"]})


Values = Callable[[Caller], list[str]]


EXAMPLE = '''\
import math
from typing import Annotated


def arrhenius(temperature: Annotated[float, (300.0, 900.0), "K"], barrier: float = 1.0) -> float:
    """Rate constant of a reaction by the law of Arrhenius.

    Args:
        temperature: Of the surface.
        barrier: In eV, 0.1 to 3.

    Returns:
        In 1/s.
    """
    return 1e13 * math.exp(-barrier / (8.617333e-5 * temperature))


def test_arrhenius():
    assert arrhenius(600.0) < arrhenius(700.0)
'''
"""A text that passes all checks of a registered tool."""


def write_a_tool(
    caller: Caller,
    what: Annotated[str, Field(description="What the tool is to compute, from what, with units.")],
    agent: Annotated[str, Field(description="The agent that is to have it; empty: none.")] = "",
) -> list[Message]:
    """A tool from a plain description: written by a model, registered, tried, then approved by a person."""
    give = f" with agent = {_quoted(agent)}" if agent else ""
    taken = sorted(one["name"] for one in caller.workspace.tools())
    return [
        UserMessage(
            f"Write a Python function as a tool of this workspace: {_quoted(what)}\n"
            "1. list_apps: if an app does it already, say so and write none.\n"
            "2. The function has a type for each argument and for what it returns, and a docstring in Google "
            "style: what it does, Args, Returns, a unit in brackets for each number ([1] for a pure one), bounds "
            "by Annotated[float, (low, high)]. Standard library, numpy and scipy. Nothing is done at the top of "
            "the text. At least one function test_* holds it against a value that is known from elsewhere: say "
            "from where.\n"
            f"3. register_tool_from_code{give}; correct what it refuses. Names that are taken: "
            f"{', '.join(taken) or 'none'}.\n"
            "4. get_registered_tool until its tests have ended; show the text and what they say to the person, "
            "who decides by decide_registered_tool or `hpcagent tools approve`.\n"
            f"{RULES}"
        ),
        UserMessage(f"A text of the right form:\n\n```python\n{EXAMPLE}```"),
    ]


@dataclass(frozen=True)
class Offered:
    """A prompt of the server.

    Attributes:
        function: Makes its messages; the docstring is for people.
        title: A name for people.
        values: Argument to the values that it may have.
    """

    function: Callable[..., list[Message]]
    title: str
    values: dict[str, Values] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As clients ask for it."""
        return self.function.__name__


def _agents(caller: Caller) -> list[str]:
    return [one["name"] for one in caller.workspace.agents()]


def _fixed(*values: str) -> Values:
    return lambda caller: list(values)


PROMPTS = (
    Offered(analyze_trends, "Analyze trends", {"app": _apps, "metric": _metrics}),
    Offered(generate_experiment_plan, "Plan experiments"),
    Offered(tune_my_input, "Tune my input", {"app": _apps, "max_runs": _fixed("12", "24", "48")}),
    Offered(
        converge_my_dft,
        "Converge my DFT",
        {"engine": _fixed("espresso", "gpaw"), "tolerance_mev_per_atom": _fixed("1", "2", "5", "10")},
    ),
    Offered(what_happened_in_this_campaign, "What happened in this campaign", {"campaign_id": _campaigns}),
    Offered(write_a_tool, "Write a tool", {"agent": _agents}),
)


class Served(Prompt):
    """A prompt as the SDK serves it; wrong arguments are an error that says which and what is needed."""

    async def render(
        self, arguments: dict[str, Any] | None, context: Context[Any, Any]
    ) -> list[Message] | InputRequiredResult:
        """Make its messages."""
        given = arguments or {}
        known = self.arguments or []
        for one in known:
            if one.required and not str(given.get(one.name, "")).strip():
                raise _wrong(f"the prompt {self.name} needs {one.name}: {one.description}")
        for name, value in given.items():
            if name not in {one.name for one in known}:
                has = ", ".join(one.name for one in known)
                raise _wrong(f"the prompt {self.name} has no argument {clean_text(name, 80)!r}; it has {has}.")
            if not isinstance(value, str) or len(value) > LONGEST:
                raise _wrong(f"{name} is a text of at most {LONGEST} characters.")
        return await super().render(arguments, context)


def add_prompts(server: MCPServer[Any]) -> None:
    """Have a server, which completes addresses by itself, offer the prompts and complete their arguments."""
    for one in PROMPTS:
        made = Served.from_function(
            _served(one),
            name=one.name,
            title=one.title,
            description=inspect.cleandoc(one.function.__doc__ or ""),
        )
        server.add_prompt(made)

    async def asked(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Refuse unknown prompts in words, and complete arguments of these."""
        params = ctx.params or {}
        ref = params.get("ref")
        completes = ctx.method == "completion/complete"
        if completes and isinstance(ref, Mapping) and ref.get("type") == "ref/prompt":
            name = ref.get("name")
        elif ctx.method == "prompts/get":
            name = params.get("name")
        else:
            return await call_next(ctx)
        known = [one.name for one in await server.list_prompts()]
        if name not in known:
            raise _wrong(f"there is no prompt {clean_text(str(name), 80)!r}; there are {', '.join(known)}.")
        ours = next((one for one in PROMPTS if one.name == name), None)
        if completes and ours is not None:
            return await _completed(ours, params.get("argument"))
        return await call_next(ctx)

    server.middleware.append(asked)


async def _completed(one: Offered, argument: Any) -> CompleteResult:
    """The values of an argument that begin as it is written so far, else those that have it in them."""
    name, so_far = (
        (argument.get(key) for key in ("name", "value")) if isinstance(argument, Mapping) else (None, None)
    )
    values = one.values.get(str(name))
    if values is None or not isinstance(so_far, str):
        return CompleteResult(completion=Completion(values=[], total=0, has_more=False))
    caller = caller_now()
    caller.require("runs:read")
    known = await in_thread(values, caller)
    found = [v for v in known if v.startswith(so_far)] or [v for v in known if so_far in v]
    return CompleteResult(
        completion=Completion(values=found[:MOST_VALUES], total=len(found), has_more=len(found) > MOST_VALUES)
    )


def _served(one: Offered) -> Callable[..., Any]:
    signature = inspect.signature(one.function, eval_str=True)
    taken = [p for name, p in signature.parameters.items() if name != "caller"]

    async def make(**arguments: str) -> list[Message]:
        caller = caller_now()
        try:
            caller.require("runs:read")
            found: list[Message] = await in_thread(functools.partial(one.function, caller, **arguments))
        except HpcAgentError as error:
            raise _wrong(clean_text(error.message)) from None
        return found

    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in taken]
    made: Any = make
    made.__signature__ = signature.replace(parameters=keywords, return_annotation=list[Message])
    made.__annotations__ = {p.name: p.annotation for p in keywords} | {"return": list[Message]}
    made.__name__ = one.name
    return make


def _wrong(words: str) -> MCPError:
    return MCPError(INVALID_PARAMS, words)


def _quoted(text: str) -> str:
    """What somebody has written, as one text between quotation marks."""
    return json.dumps(clean_text(text.strip(), LONGEST), ensure_ascii=False)


def _data(found: Any) -> Message:
    text = json.dumps(clean(found), ensure_ascii=False, indent=1)
    return UserMessage(f"{DATA}\n\n```json\n{text}\n```")


def _app_card(caller: Caller, app: str) -> dict[str, Any]:
    name = app.strip()
    if name not in _apps(caller):
        raise _wrong(f"there is no app {_quoted(app)} that you may use; list_apps has those that there are.")
    contract = Contract.model_validate(caller.workspace.describe(name))
    space = contract.space.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return {
        "name": contract.name,
        "version": contract.version,
        "description": contract.description,
        "parameters": space["parameters"],
        "metrics": [{"name": m.name, "unit": m.unit, "description": m.description} for m in contract.metrics],
    }


def _whole(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise _wrong(f"{name} = {_quoted(text)} is not allowed: a whole number from {low} to {high}.")
    return value


def _positive(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise _wrong(f"{name} = {_quoted(text)} is not allowed: a positive number.")
    return value
