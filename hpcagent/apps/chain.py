"""Chains: a function over the futures of apps, steerable as one app.

A chain's function runs in the process that steers, not on a worker. What it calls are runs of their own, each
with its manifest, directory and resources; it may wait for one (`.result()`) to decide about the next.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.decorator import app_of
from hpcagent.apps.made_with import mixed_versions
from hpcagent.apps.parts import CALLER, Part, Value, failed, failure_in
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.contract import LONG_RUNTIME_S, OUTPUTS_ONLY, Metric
from hpcagent.model.parameter import Parameter
from hpcagent.model.records import Manifest, Result
from hpcagent.moved import new_name

__all__ = [
    "ChainRun",
    "chain",
    "chain_function",
]


Call = Callable[[App, tuple[Any, ...], Mapping[str, Any], int | None, int | None], Part]


class ChainRun:
    """One chain while its function runs.

    Args:
        app: The chain.
        upstream: What it takes as input: futures, `Result`s or structures.
        call: Starts an inner run.
    """

    def __init__(self, app: App, upstream: tuple[Any, ...], call: Call) -> None:
        self._app = app
        self._upstream = upstream
        self._call = call
        self._lock = threading.Lock()
        self.parts: list[Part] = []

    def ask(
        self,
        app: App,
        upstream: tuple[Any, ...],
        params: Mapping[str, Any],
        seed: int | None,
        replicate: int | None,
    ) -> Part:
        """Start an inner run."""
        part = self._call(app, upstream, params, seed, replicate)
        with self._lock:
            self.parts.append(part)
        return part

    def function(self, run: Run, **params: Any) -> Outcome:
        """Call the chain's function and wait for all that it has asked for."""
        own = chain_function(self._app)
        rest = (p for p in self._app.contract.space.parameters if p.name not in params)
        params |= {p.name: p.default for p in rest if p.default is not None}
        if "run" in inspect.signature(own).parameters:
            params["run"] = run
        token = CALLER.set(self)
        try:
            outcome = _settled(own(*self._upstream, **params), run.workdir)
        except Exception as error:
            culprit = self._culprit()
            if culprit is not None:
                raise failed(culprit) from error
            raise
        finally:
            CALLER.reset(token)
            self._wait()
        lost = [p for p in self.parts if p.result().failure is not None]
        if lost and any(m.required and m.name not in outcome.metrics for m in self._app.contract.metrics):
            raise failed(self._culprit() or lost[0].result())
        outcome = replace(outcome, notes=(*outcome.notes, *self._notes(outcome.notes)))
        if lost:
            said = ", ".join(f"{p.app} ({failure_in(p.result()).name})" for p in lost)
            outcome = replace(outcome, notes=(*outcome.notes, f"inner runs failed: {said}"))
        return outcome

    def account(self) -> dict[str, Any]:
        """What the chain's result says of its inner runs: `parts`, and the sum of what they cost."""
        cost: dict[str, Any] = {"wall_s": 0.0, "cpu_s": 0.0, "core_hours": 0.0, "node_hours": 0.0}
        rows = []
        seen: set[str] = set()
        for part in self.parts:
            result = _ended(part)
            if result is None or part.execution_id in seen:
                continue
            seen.add(part.execution_id)
            for key in cost if not part.shared else ():
                cost[key] += getattr(result.cost, key) or 0.0
            rows.append(
                {
                    "execution_id": part.execution_id,
                    "app": part.app,
                    "status": result.status,
                    "shared": part.shared,
                    "node_hours": 0.0 if part.shared else result.cost.node_hours,
                }
            )
        return {"cost": cost, "parts": rows, **self._made_with()}

    def _notes(self, known: tuple[str, ...]) -> list[str]:
        """What a reader of the chain's numbers has to know of its inner runs: all that they say themselves.

        A remark of several runs of one app stands once, with how many of them make it; those in `known`, which the
        chain makes itself, do not stand twice.
        """
        said: dict[tuple[str, str], dict[str, None]] = {}
        ended = [r for r in map(_ended, self.parts) if r is not None]
        for result in ended:
            for note in (note for note in result.notes if note not in known):
                said.setdefault((result.manifest.app, note), {})[result.manifest.execution_id] = None
        runs = Counter(r.manifest.app for r in {r.manifest.execution_id: r for r in ended}.values())
        notes = []
        for (app, note), of_runs in said.items():
            count = "" if runs[app] == 1 else f" ({len(of_runs)} of {runs[app]} runs)"
            notes.append(f"{app}: {note}{count}")
        mixed = mixed_versions(r.versions for r in ended)
        if mixed:
            notes.append(f"its inner runs were computed with different versions of {', '.join(mixed)}")
        return notes

    def _made_with(self) -> dict[str, dict[str, str]]:
        """Files, versions and levels of theory of all inner runs; what differs stands beside each other."""
        ended = [r for r in map(_ended, self.parts) if r is not None]
        files = {path: digest for r in ended for path, digest in r.files.items()}
        said = {
            "files": files,
            "versions": _beside([r.versions for r in ended]),
            "level_of_theory": _beside([r.level_of_theory for r in ended]),
        }
        return {name: found for name, found in said.items() if found}

    def _culprit(self) -> Result | None:
        """The inner run that failed first by itself, not because of another."""
        ended = [r for r in map(_ended, self.parts) if r is not None and r.failure is not None]
        alone = [r for r in ended if not failure_in(r).means.passed_on]
        return min(alone or ended, key=lambda r: r.ended_at, default=None)

    def _wait(self) -> None:
        """What was started is paid for: the chain ends when all of it has."""
        for part in list(self.parts):
            with contextlib.suppress(BaseException):
                part.result()


def _beside(said: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What several say, by names: values that differ beside each other."""
    found: dict[str, dict[str, None]] = {}
    for one in said:
        for name, value in one.items():
            found.setdefault(name, {})[value] = None
    return {name: ", ".join(values) for name, values in found.items()}


def _ended(part: Part) -> Result | None:
    if not part.done() or part.cancelled() or part.exception() is not None:
        return None
    return part.result()


def _settled(returned: Any, workdir: Path) -> Outcome:
    """What a chain's function returned, with every future in it waited for."""
    if isinstance(returned, Future):
        returned = returned.result()
    if isinstance(returned, Result):
        return _as_outcome(returned, workdir)
    if isinstance(returned, Outcome):
        metrics, uncertainty = _numbers(returned.metrics)
        return replace(returned, metrics=metrics, uncertainty={**uncertainty, **returned.uncertainty})
    if isinstance(returned, Mapping):
        metrics, uncertainty = _numbers(returned)
        return Outcome(metrics=metrics, uncertainty=uncertainty)
    raise AppFailed(
        f"the chain's function returned {type(returned).__name__}; it must return the future of a run, a dict of "
        "metrics (numbers, or `run[metric]`) or an Outcome.",
        kind="contract",
        name="BadReturn",
    )


def _as_outcome(result: Result, workdir: Path) -> Outcome:
    if result.failure is not None:
        raise failed(result)
    return Outcome(
        metrics=result.metrics,
        units=result.units,
        uncertainty=result.uncertainty,
        artifacts={
            name: os.path.relpath(Path(result.workdir) / file, workdir) for name, file in result.artifacts.items()
        },
        notes=result.notes,
        distrusted=result.distrusted,
    )


def _numbers(given: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    metrics: dict[str, float] = {}
    uncertainty: dict[str, float] = {}
    for name, value in given.items():
        if isinstance(value, Value):
            metrics[name] = value.result()
            of_part = value.part.result().uncertainty
            if value.metric in of_part:
                uncertainty[name] = of_part[value.metric]
        else:
            metrics[name] = value.result() if isinstance(value, Future) else value
    return metrics, uncertainty


def metrics_of(part: Future[Result]) -> dict[str, float]:
    """All metrics of an inner run, waited for.

    Raises:
        AppFailed: It failed; the chain fails with its reason.
    """
    result = part.result()
    if result.failure is not None:
        raise failed(result)
    return dict(result.metrics)


def artifacts_of(run: Run, **parts: Future[Result] | Result) -> dict[str, str]:
    """Artifacts of inner runs as those of the chain: `plot=part` names the artifact `plot` of the run `part`.

    Runs that failed, or have no such artifact, are left out.
    """
    found = {}
    for name, part in parts.items():
        result = part.result() if isinstance(part, Future) else part
        if result.failure is None and name in result.artifacts:
            found[name] = os.path.relpath(Path(result.workdir) / result.artifacts[name], run.workdir)
    return found


def chain_function(app: App) -> Callable[..., Any]:
    """The chain's function, in this process.

    Raises:
        AppFailed: It cannot be imported here.
    """
    if app.plain_function is not None:
        return app.plain_function
    module, _, name = app.function.partition(":")
    try:
        found = getattr(importlib.import_module(new_name(module)), name)
    except (ImportError, AttributeError) as error:
        raise AppFailed(
            f"the chain {app.function!r} cannot be imported: {error}.",
            kind="infrastructure",
            name="AppNotImportable",
        ) from None
    plain: Callable[..., Any] = getattr(found, "plain_function", None) or found
    return plain


def identity_of(upstream: Any) -> str:
    """What stands for an input in the execution id of the run that takes it.

    Raises:
        BadInput: It is none that could be an input.
    """
    from hpcagent.apps.structures import Given

    if isinstance(upstream, Result):
        return upstream.manifest.execution_id
    if isinstance(upstream, Given):
        return upstream.identity
    identity = getattr(upstream, "execution_id", None)
    if isinstance(upstream, Future) and isinstance(identity, str):
        return identity
    raise BadInput(
        "an input run is the future of an app, its Result, an ASE Atoms or the path of a structure file; got "
        f"{type(upstream).__name__}.",
        value=upstream,
    )


def inner_manifest(
    of: Manifest,
    chain: App,
    app: App,
    upstream: tuple[Any, ...],
    params: Mapping[str, Any],
    seed: int | None,
    replicate: int | None,
    site: Mapping[str, Any] | None = None,
) -> Manifest:
    """The manifest of an inner run of the run `of` of a chain.

    An app that uses random numbers takes the chain's seed and replicate where the call gives none; for any other,
    and in a chain that says no seed decides its result, they are 0, so that replicates and campaigns share it.
    """
    seeded = chain.contract.seeded and app.contract.seeded
    return app.manifest(
        params,
        seed=(of.seed if seeded else 0) if seed is None else seed,
        replicate=(of.replicate if seeded else 0) if replicate is None else replicate,
        upstream=tuple(map(identity_of, upstream)),
        role="part",
        batch=of.batch,
        index=of.index,
        requested_by=of.execution_id,
        priority=of.priority,
        site=site,
    )


def chain(
    *,
    metrics: Mapping[str, str | Metric],
    parameters: Mapping[str, Parameter] | None = None,
    name: str | None = None,
    version: str = "0.1.0",
    inputs: tuple[str, ...] = (),
    description: str | None = None,
    estimated_runtime_s: float = LONG_RUNTIME_S,
    deterministic: bool = True,
    seeded: bool = True,
    failure_modes: tuple[str, ...] = (),
    side_effects: str = OUTPUTS_ONLY,
    deprecated: str | None = None,
    settings: Mapping[str, Any] | None = None,
    files: tuple[str, ...] = (),
    vary: tuple[str, ...] = (),
    constraints: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], App]:
    """Turn a function that calls apps into a chain: an app whose runs are made of other apps' runs.

    The function is called with the inputs by position and the parameters by name (and with `run`, a `Run`, if it
    has an argument of that name). Calls of apps in it return futures at once; a future may be an input of the
    next call, `future["energy"]` is a metric of it, and `future.result()` waits for it. It returns the future of
    its last run, whose metrics are then the chain's, or a dict of metrics, or an `Outcome`.

    An inner run that fails fails the chain with its reason, where the function uses it. Runs that are the
    same (app, parameters, inputs, seed) are run once in a campaign, and in all campaigns that share a `cache`
    folder. The cost of a chain is that of the inner runs that were run for it.

    Args:
        metrics: Name -> unit (or a `Metric`) of every number it returns.
        parameters: Name -> `Float(...)`, `Int(...)`, `Choice(...)` or `Text(...)`.
        name: The chain's name; the function's name by default.
        version: Semantic version; change it when the meaning of the result changes.
        inputs: Names of the runs or structures it takes, in the order of the function's first arguments.
        description: One sentence; the first line of the docstring by default.
        estimated_runtime_s: Expected wall time, in seconds.
        deterministic: Whether the same manifest gives the same metrics: False where an app of it is not.
        seeded: Whether the result depends on seed and replicate; where it does not, a run is taken as exact.
        failure_modes: Names of the failures it can return beside those of its apps.
        side_effects: The strongest of its own and its apps'; see `@app`.
        deprecated: Why it should not be used any more; see `@app`.
        settings: Plain data handed to the function as `run.settings`.
        files: Names of settings that are paths of files.
        vary: Parameters that a campaign varies if it does not say.
        constraints: Conditions on parameters that every run keeps, e.g. `["x + y <= 1"]`.

    Raises:
        BadInput: A parameter is not an argument of the function, or an argument has no parameter.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> from hpcagent.model.parameter import Float
        >>> @chain(parameters={"x": Float(0, 1)}, metrics={"sum": "1"})
        ... def both_styles(x):
        ...     runs = [synthetic(x=x, style=style) for style in ("plain", "tuned")]
        ...     return {"sum": sum(run.result()["value"] for run in runs)}
        >>> both_styles.chain
        True
    """

    def wrap(function: Callable[..., Any]) -> App:
        return app_of(
            function,
            chain=True,
            metrics=metrics,
            parameters=parameters,
            name=name,
            version=version,
            inputs=inputs,
            description=description,
            estimated_runtime_s=estimated_runtime_s,
            deterministic=deterministic,
            seeded=seeded,
            failure_modes=failure_modes,
            side_effects=side_effects,
            deprecated=deprecated,
            settings=settings,
            files=files,
            vary=vary,
            constraints=constraints,
        )

    return wrap
