"""The decorator that makes an app of a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcagent.apps import carried, described
from hpcagent.apps.base import App, check_names, declared_settings
from hpcagent.apps.modules import own_modules
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.apps.sandbox.setting import SANDBOX, as_setting, check_goes_with, refuse_as_setting
from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import build
from hpcagent.model.contract import OUTPUTS_ONLY, Contract, Metric, Resources
from hpcagent.model.extended import check_extendable
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space
from hpcagent.moved import first_name

__all__ = ["app"]


def app(
    *,
    metrics: Mapping[str, str | Metric],
    parameters: Mapping[str, Parameter] | None = None,
    name: str | None = None,
    version: str = "0.1.0",
    inputs: tuple[str, ...] = (),
    resources: Resources | None = None,
    resources_from: Mapping[str, str] | None = None,
    description: str | None = None,
    estimated_runtime_s: float = 1.0,
    deterministic: bool = True,
    seeded: bool = True,
    app_type: str = "simulation",
    failure_modes: tuple[str, ...] = (),
    side_effects: str = OUTPUTS_ONLY,
    deprecated: str | None = None,
    settings: Mapping[str, Any] | None = None,
    files: tuple[str, ...] = (),
    vary: tuple[str, ...] = (),
    constraints: Sequence[str] = (),
    extendable: bool = False,
    mpi: bool = False,
    ensemble: bool = False,
    sandbox: Sandbox | Mapping[str, Any] | str | None = None,
) -> Callable[[Callable[..., Any]], App]:
    """Turn a Python function into an app.

    The function is called with the parameters by name (and with `run`, a `Run`, if it has an argument of
    that name) and returns a dict of metrics or an `Outcome`.

    Args:
        metrics: Name -> unit (or a `Metric`) of every number it returns.
        parameters: Name -> `Float(...)`, `Int(...)`, `Choice(...)` or `File(...)`.
        name: The app's name; the function's name by default.
        version: Semantic version; change it when the meaning of the result changes.
        inputs: Names of the input runs it takes, e.g. `("run",)`.
        resources: What one run occupies.
        resources_from: Resource -> name of the parameter that decides it, e.g. `{"ranks_per_node": "ranks"}`.
        description: One sentence; the first line of the docstring by default.
        estimated_runtime_s: Expected wall time, in seconds.
        deterministic: Whether the same manifest gives the same metrics; say False where it does not.
        seeded: Whether the result depends on the run's seed and replicate.
        app_type: simulation, analysis, ml, database or optimization.
        failure_modes: Names of the failures it can return.
        side_effects: What it touches beside its run's directory: `"declared outputs only"`, `"reads the network"`,
            `"writes outside its folder"` or `"changes another system"`, the strongest that applies.
        deprecated: Why it should not be used any more, and what instead; it is then found by its version only.
        settings: Plain data handed to the function as `run.settings`: the names and values it has if
            `with_settings` does not say otherwise.
        files: Names of settings that are paths of files; the function finds them in `run.settings["paths"]`.
        vary: Parameters that a campaign varies if it does not say.
        constraints: Conditions on parameters that every run keeps, e.g. `["x + y <= 1"]`.
        extendable: Whether a finished run can go on from its end. The function then looks at `run.extends` (what
            it goes on from, with its `workdir`, or None) and `run.times` (how many times as long as an ordinary
            run it is to be in all), and gives metrics of the whole.
        mpi: Whether the function runs on every MPI rank of the run, with the mpi4py communicator `run.comm`; what
            rank 0 returns is the outcome.
        ensemble: Whether a campaign's runs of it share MPI launches (see `[ensemble]` of a campaign); with `mpi`,
            each takes its own ranks of them.
        sandbox: Confines its runs: a tier (`"limits"`, `"bubblewrap"`), the keys of `[sandbox]`, or a `Sandbox`.
            Each is then a process of its own, which alone imports the function's module.

    Raises:
        BadInput: A parameter is not an argument of the function, or an argument has no parameter; `mpi` without an
            argument `run`, or with a function that yields.

    Example:
        >>> from hpcagent.model.parameter import Float
        >>> @app(parameters={"x": Float(-2, 2)}, metrics={"y": "1"})
        ... def parabola(x):
        ...     return {"y": x**2}
        >>> parabola.contract.space.names
        ('x',)
    """

    def wrap(function: Callable[..., Any]) -> App:
        return app_of(
            function,
            metrics=metrics,
            parameters=parameters,
            name=name,
            version=version,
            inputs=inputs,
            resources=resources,
            resources_from=resources_from,
            description=description,
            estimated_runtime_s=estimated_runtime_s,
            deterministic=deterministic,
            seeded=seeded,
            app_type=app_type,
            failure_modes=failure_modes,
            side_effects=side_effects,
            deprecated=deprecated,
            settings=settings,
            files=files,
            vary=vary,
            constraints=constraints,
            extendable=extendable,
            mpi=mpi,
            ensemble=ensemble,
            sandbox=sandbox,
        )

    return wrap


def app_of(
    function: Callable[..., Any],
    *,
    metrics: Mapping[str, str | Metric],
    chain: bool = False,
    name: str | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    description: str | None = None,
    resources: Resources | None = None,
    settings: Mapping[str, Any] | None = None,
    files: tuple[str, ...] = (),
    vary: tuple[str, ...] = (),
    constraints: Sequence[str] = (),
    inputs: tuple[str, ...] = (),
    resources_from: Mapping[str, str] | None = None,
    extendable: bool = False,
    mpi: bool = False,
    ensemble: bool = False,
    sandbox: Sandbox | Mapping[str, Any] | str | None = None,
    **contract: Any,
) -> App:
    """Make the app of a function; what `app` and `chain` have in common.

    Raises:
        BadInput: A parameter is not an argument of the function, or an argument has no parameter.
    """
    space = Space.made(Space.of(**(parameters or {})).parameters, constraints)
    check_names(space, f"app {name or function.__name__}", "use `run.seed`")
    _check_signature(function, space, inputs if chain else ())
    refuse_as_setting(settings or {}, f"app {name or function.__name__}")
    if extendable:
        check_extendable(function, settings or {})
        settings = {**(settings or {}), "extendable": True}
    if mpi:
        _check_ranked(function)
    lines = (inspect.getdoc(function) or "").splitlines()
    made_contract = build(
        Contract,
        {
            "name": name or function.__name__,
            "description": description or (lines[0] if lines else ""),
            "space": space,
            "inputs": inputs,
            "metrics": tuple(
                m.model_copy(update={"name": n}) if isinstance(m, Metric) else Metric(name=n, unit=m)
                for n, m in metrics.items()
            ),
            "resources": resources or Resources(),
            "resources_from": dict(resources_from or {}),
            **contract,
        },
        where=f"app {name or function.__name__}",
    )
    made_settings = declared_settings(settings or {}, files)
    if sandbox is not None:
        made_settings[SANDBOX] = as_setting(sandbox, f"app {made_contract.name}")
    check_goes_with(made_contract.name, made_settings, made_contract.resources, mpi=mpi, ensemble=ensemble)
    module = first_name(function.__module__)
    importable = module != "__main__" and "<locals>" not in function.__qualname__
    made = App(
        contract=made_contract,
        function=f"{module}:{function.__qualname__}" if importable else "",
        source=f"{module}:{function.__qualname__}",
        # Our own apps are versioned; a user rarely changes a version number, so their code counts.
        code_digest="" if module.startswith("hpcagent.") else carried.source_digest(function),
        code_form=0 if module.startswith("hpcagent.") else described.FORM,
        settings=made_settings,
        vary=vary,
        chain=chain,
        mpi=mpi,
        ensemble=ensemble,
    )
    made._callable = function
    if made.code_digest:
        # Looked at while it is being imported: what this process goes on with is what the files have in them now.
        own_modules(carried.module_roots(function))
    return made


def _check_ranked(function: Callable[..., Any]) -> None:
    """Refuse a function of MPI ranks that has no use for them, or gives its values one by one."""
    arguments = inspect.signature(function).parameters
    if "run" not in arguments and not any(a.kind is a.VAR_KEYWORD for a in arguments.values()):
        raise BadInput(
            f"{function.__name__}() is to run on MPI ranks (mpi=True), but has no argument `run`, whose "
            "`run.comm` is the communicator; without it every rank would do the same. Add `run`, or leave "
            "mpi=True out.",
            value=function.__name__,
        )
    if inspect.isgeneratorfunction(function):
        raise BadInput(
            f"{function.__name__}() yields, and is to run on MPI ranks (mpi=True): one rank of several cannot be "
            "stopped alone. Return the metrics instead.",
            value=function.__name__,
        )


def _check_signature(function: Callable[..., Any], space: Space, inputs: tuple[str, ...]) -> None:
    """Hold the function's arguments against the parameters, and a chain's first ones against its inputs."""
    arguments = dict(inspect.signature(function).parameters)
    for name, place in zip(inputs, list(arguments), strict=False):
        if name.endswith("...") or arguments[place].kind is inspect.Parameter.VAR_POSITIONAL:
            del arguments[place]
            break
        if name != place:
            raise BadInput(
                f"argument {place!r} of {function.__name__}() stands where its input {name!r} should; the inputs "
                "are its first arguments, in their order.",
                value=place,
            )
        del arguments[place]
    if any(a.kind is a.VAR_KEYWORD for a in arguments.values()):
        return
    for p in space.parameters:
        if p.when is not None and p.default is None:
            argument = arguments.get(p.name)
            if argument is not None and argument.default is argument.empty:
                raise BadInput(
                    f"argument {p.name!r} of {function.__name__}() is left out where {p.when!r} is not kept, and "
                    f"has no default; write {p.name}=... in its definition, or give the parameter a default.",
                    value=p.name,
                )
    for name in space.names:
        if name not in arguments:
            raise BadInput(
                f"function {function.__name__}() has no argument {name!r}; {nearest(name, arguments)}", value=name
            )
    for name, argument in arguments.items():
        if name != "run" and name not in space and argument.default is argument.empty:
            raise BadInput(
                f"argument {name!r} of {function.__name__}() has no parameter; add it to parameters=.", value=name
            )
