"""The App record: a contract, and the function that keeps it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr, field_serializer

from hpcagent.apps import carried, described, uses
from hpcagent.apps.chosen import chosen
from hpcagent.apps.deciding import declared, with_files
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.made_with import sha256
from hpcagent.apps.modes import ENSEMBLE, MODE, in_ensemble, is_mode, with_mode
from hpcagent.apps.modules import own_modules
from hpcagent.apps.parts import CALLER, Part, by_hand, valued
from hpcagent.apps.sandbox.setting import SANDBOX, as_setting, check_goes_with, counting
from hpcagent.errors import BadInput, nearest
from hpcagent.html import Card, Displayed
from hpcagent.model.base import Record, build, canonical_json
from hpcagent.model.contract import Contract, Resources
from hpcagent.model.files import contents
from hpcagent.model.parameter import Params
from hpcagent.model.records import LARGEST_WHOLE, Manifest, Role, checked_counter
from hpcagent.model.space import Space
from hpcagent.moved import moved, new_name

if TYPE_CHECKING:
    from parsl.dataflow.futures import AppFuture


__all__ = ["App", "check_names"]


class App(Displayed, Record):
    """A function that runs on a worker, and what it promises.

    Calling an app inside an open site (or a `parsl.load` of your own) returns a Parsl `AppFuture` whose
    result is a `Result`. A future, or a `Result`, may be passed as an argument: it is the run's input.

    Attributes:
        contract: What it takes and gives.
        function: `"package.module:name"`, importable where the workers run; empty for a function that is
            defined in a script or notebook, which travels by value.
        settings: Plain data for the function, e.g. the text of an input script; see `with_settings`.
        source: What the user named: a packaged name or a path.
        code_digest: SHA-256 of the function's source, for functions that are not hpcagent's own. Written down with
            what a function of a script uses of it.
        modules: SHA-256 of the files of the user's own modules that the function is made of, by name (see
            `hpcagent.apps.modules`); empty for hpcagent's own functions, and in records of before they counted.
        inner: Of a chain in an importable module: SHA-256 of the apps, and of their files, that it calls by name.
        modules_later: As `modules`, of a campaign whose record is of before they counted: as they were when it was
            next gone on with. Its execution ids stay as they were.
        inner_later: As `inner`, likewise.
        code_form: How much of the code counts in them (see `described.FORM`); 0 in records of before it was told.
        vary: Names of the parameters that a campaign varies if it does not say; all that have no default, or
            all, where empty.
        chain: Whether its runs are made of runs of other apps (see `hpcagent.apps.chain`).
        mpi: Whether its function runs on every MPI rank of a run (see `hpcagent.apps.over_ranks`).
        ensemble: Whether runs of its function share MPI launches; of LAMMPS the setting `mode` says so. It is no
            part of the digest.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> synthetic.contract.metric("value").unit
        '1'
    """

    contract: Contract
    function: str = ""
    settings: dict[str, Any] = {}
    source: str = ""
    code_digest: str = ""
    modules: dict[str, str] = {}
    inner: dict[str, str] = {}
    modules_later: dict[str, str] = {}
    inner_later: dict[str, str] = {}
    code_form: int = 0
    vary: tuple[str, ...] = ()
    chain: bool = False
    mpi: bool = False
    ensemble: bool = False
    _callable: Callable[..., Any] | None = PrivateAttr(default=None)
    # What its code is was settled, for a campaign: see `frozen`.
    _frozen: bool = PrivateAttr(default=False)
    _sent: carried.Carried | None = PrivateAttr(default=None)
    # Read back from a record: its files keep the digests that they had.
    _recorded: bool = PrivateAttr(default=False)

    def _card(self) -> Card:
        c = self.contract
        where = self.source or self.function
        facts = [*c._facts()[:1], ("from", where), *c._facts()[1:]]
        return Card(
            "Chain" if self.chain else "App", f"{c.name} {c.version}", facts, c._tables(), brief=c._brief()
        )

    @property
    def name(self) -> str:
        """The app's name."""
        return self.contract.name

    @property
    def shares_launches(self) -> bool:
        """Whether its runs share MPI launches."""
        return self.ensemble or (self.function == LAMMPS and self.settings.get(MODE) == ENSEMBLE)

    @property
    def plain_function(self) -> Callable[..., Any] | None:
        """The Python function itself, where this process has it."""
        return self._callable

    @property
    def is_recorded(self) -> bool:
        """Whether it was read back from a campaign's folder: its files count by what they had in them then."""
        return self._recorded

    @property
    def runnable(self) -> bool:
        """Whether a worker can be told which function to run; not for one from a script, read back from JSON."""
        return bool(self.function) or self._callable is not None

    @property
    def digest(self) -> str:
        """SHA-256 of the settings, input files and function: what decides a result beside the parameters."""
        # Where a file lies does not decide what a run gives, what is in it does.
        settings = _counting(self.settings, self.function, "paths")
        parts = [self.function, self._whole_code(self.code_digest), settings]
        of_others = [self._whole_modules(self.modules), self._whole_inner(self.inner)]
        if any(of_others):
            parts += of_others
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()

    @property
    def made_of(self) -> dict[str, str]:
        """Name -> SHA-256 of the modules of the user's that a worker has to have as they are here."""
        return self._whole_modules(self.modules) | self.modules_later

    @field_serializer("code_digest")
    def _whole_code(self, code_digest: str) -> str:
        # Only now: a script may define below the app what the app's function uses.
        if self._callable is None or self.function or not code_digest or self._frozen:
            return code_digest
        return carried.code_digest(self._callable)

    @field_serializer("modules")
    def _whole_modules(self, modules: dict[str, str]) -> dict[str, str]:
        if self._callable is None or not self.code_digest or self._frozen:
            return modules
        return self._modules_now()

    def _modules_now(self) -> dict[str, str]:
        if self._callable is not None:
            return own_modules(carried.module_roots(self._callable))
        return own_modules([new_name(self.function.partition(":")[0])])

    @field_serializer("inner")
    def _whole_inner(self, inner: dict[str, str]) -> dict[str, str]:
        if self._callable is None or not self.code_digest or self._frozen:
            return inner
        return self._inner_now()

    def _inner_now(self) -> dict[str, str]:
        # Of a function of a script they are in the digest of its code.
        if not (self._callable and self.function and self.chain):
            return {}
        found: dict[str, str] = {}
        for name, app in sorted(uses.apps_in(self._callable).items()):
            found |= app._as_inner(name)
        return found

    def _as_inner(self, name: str) -> dict[str, str]:
        files = self.settings.get("files")
        settings = _counting(self.settings, self.function, "paths", "files")
        text = canonical_json([self.contract.version, self.function, self.code_digest, settings])
        found = {f"app {name}": hashlib.sha256(text.encode()).hexdigest()}
        if isinstance(files, Mapping):
            found |= {f"{file} of app {name}": str(digest) for file, digest in files.items()}
        return found

    def recorded(self) -> App:
        """A copy, read back from a record, whose files count by what they had in them then."""
        copy = self._changed()
        copy._recorded = True
        return copy

    def frozen(self) -> App:
        """A copy whose code is settled: what a campaign began with, all its runs are computed with."""
        copy = self._changed(
            code_digest=self._whole_code(self.code_digest),
            modules=self._whole_modules(self.modules),
            inner=self._whole_inner(self.inner),
        )
        copy._frozen = True
        if self._callable is not None and not self.function:
            copy._sent = carried.carry(self._callable)
        return copy

    @property
    def sent(self) -> carried.Carried | None:
        """The function of a script or notebook as it goes to other processes; None for one that is imported."""
        return self._sent

    def sending(self, function: carried.Carried) -> App:
        """A copy, read back from a record, whose function goes on by value as it came; it is not unpacked here."""
        copy = self._changed()
        copy._sent, copy._frozen = function, True
        return copy

    def carrying(self, function: carried.Carried) -> App:
        """A copy, read back from a record, that runs a function which was carried here by value."""
        copy = self._changed()
        copy._sent, copy._callable, copy._frozen = function, function.function(), True
        return copy

    def without_modules(self) -> App:
        """A frozen copy that goes on as a record of before modules counted has it."""
        return self.frozen()._changed(modules={}, inner={}, code_form=0)

    def continuing(self, recorded: App) -> App | None:
        """This app, frozen, as the one whose runs go on those of the recorded app; None where it is another.

        What was recorded before modules counted goes on as it was recorded, so that its execution ids stay; from
        now on its modules are those that it goes on with.
        """
        frozen = self.frozen()
        if frozen.digest == recorded.digest:
            return frozen._later(self, recorded)
        if recorded.code_form >= described.FORM:
            return None
        for as_before in frozen._before(own=bool(recorded.modules or recorded.inner)):
            if as_before.digest == recorded.digest:
                return as_before._later(self, recorded)
        return None

    def _before(self, *, own: bool) -> Iterator[App]:
        """As records of code form 0 may have it; `own`: those with the user's own modules."""
        digests = [self.code_digest]
        modules, inner = (self.modules, self.inner) if own else ({}, {})
        if self._callable is not None and self.code_digest:
            if own:
                roots = carried.module_roots(self._callable, as_before=True)
                modules = own_modules(roots, as_before=True)
            if not self.function:
                digests.append(carried.code_digest(self._callable, as_before=True))
                digests.append(carried.code_digest(self._callable, with_paths=True))
        for code_digest in digests:
            yield self._changed(modules=modules, inner=inner, code_digest=code_digest, code_form=0)

    def _later(self, given: App, recorded: App) -> App:
        """This frozen app with the modules that a record of before they counted lacks."""
        if recorded.modules or recorded.inner or not self.code_digest:
            return self
        modules = recorded.modules_later or given._modules_now()
        inner = recorded.inner_later or given._inner_now()
        return self._changed(modules_later=modules, inner_later=inner) if modules or inner else self

    @property
    def unknown_before(self) -> str:
        """What to say of a campaign that began before modules were recorded; empty where there is nothing."""
        names = ", ".join((*self.modules_later, *self.inner_later))
        return names and (
            f"whether the code of {names} is as it was when the campaign began is not known (this folder was "
            "written before modules were recorded); since it was gone on with it is recorded"
        )

    def with_resources(self, **changes: Any) -> App:
        """A copy that asks for other resources, e.g. `walltime_s=60`.

        Raises:
            BadInput: No such resource, a value that makes no sense, or one that a parameter decides.
        """
        for name in changes:
            if name in self.contract.resources_from:
                parameter = self.contract.resources_from[name]
                raise BadInput(
                    f"{name} of app {self.name!r} follows its parameter {parameter!r}; set that.", value=name
                )
        wanted = self.contract.resources.model_dump() | changes
        resources = build(Resources, wanted, where=f"resources of app {self.name}")
        self._check_confined(self.settings, resources, self.ensemble)
        return self._changed(contract=self.contract.model_copy(update={"resources": resources}))

    def with_settings(self, **settings: Any) -> App:
        """A copy with other settings: plain data that decides a result but is no parameter, e.g. pseudopotentials.

        A setting that names a file counts by what is in the file, not by where it lies. LAMMPS and functions of a
        user's own take `sandbox`, too: what confines their runs; None for nothing.

        Raises:
            BadInput: The app has no such setting, its value is no plain data, or its file is not there.

        Example:
            >>> from hpcagent.science.dft.energy import dft_energy
            >>> dft_energy.with_settings(keywords={"verbose": 4}).settings["keywords"]
            {'verbose': 4}
        """
        made, ensemble = dict(self.settings), self.ensemble
        for name, value in settings.items():
            if name == MODE and self.function == LAMMPS:
                made = with_mode(self.name, self.function, made, value)
                continue
            if name == MODE and MODE not in self.settings:
                ensemble = in_ensemble(self.name, value)
                continue
            if name == SANDBOX and (self._can_be_confined or name in self.settings):
                kept = {} if value is None else {SANDBOX: as_setting(value, f"app {self.name}")}
                made = {k: v for k, v in made.items() if k != SANDBOX} | kept
                continue
            if name not in self.settings or name in ("files", "paths"):
                known = [k for k in self.settings if k not in ("files", "paths")]
                raise BadInput(f"app {self.name!r} has no setting {name!r}; {nearest(name, known)}", value=name)
            if name in self.settings.get("files", {}):
                if self._recorded and value and str(value) == self.settings["paths"][name]:
                    continue
                made |= _with_file(made, name, value)
            else:
                made[name] = _plain(value, f"setting {name!r} of app {self.name!r}")
        self._check_confined(made, self.contract.resources, ensemble)
        return self._changed(settings=made, ensemble=ensemble)

    @property
    def _can_be_confined(self) -> bool:
        """Whether it runs in a sandbox when told so: LAMMPS, and a function of a user's own."""
        return self.function == LAMMPS or bool(self.code_digest and not self.chain)

    def _check_confined(self, settings: Mapping[str, Any], resources: Resources, ensemble: bool) -> None:
        check_goes_with(self.name, settings, resources, function=self.function, mpi=self.mpi, ensemble=ensemble)

    def _changed(self, **update: Any) -> App:
        copy = self.model_copy(update=update)
        copy._callable = self._callable
        copy._frozen, copy._sent, copy._recorded = self._frozen, self._sent, self._recorded
        return copy

    def manifest(
        self,
        params: Mapping[str, object],
        *,
        seed: int = 0,
        replicate: int = 0,
        upstream: tuple[str, ...] = (),
        role: Role = "direct",
        batch: int = 0,
        index: int = 0,
        requested_by: str = "",
        priority: int = 0,
        digest: str | None = None,
        checked: bool = False,
        site: Mapping[str, Any] | None = None,
        extends: str = "",
        times: float = 1.0,
        estimates: Mapping[str, float] | None = None,
    ) -> Manifest:
        """Write down one run: parameters checked, defaults filled in, the execution id computed.

        `estimates` has the manifest's fields `estimated_*`, in place of what the contract says.
        With `extends` it goes on from the end of that run, to `times` times the length of an ordinary one.
        `checked` says that `params` came from the space's own `validated`, `digest` saves working it out again.
        `site` (see `order`) has the environment of engines on the site: where their pseudopotentials are.

        Raises:
            BadInput: A parameter is unknown, missing or not allowed.
        """
        checked_counter("replicate", replicate)
        checked_counter("seed", seed, least=-LARGEST_WHOLE)
        values: Params = dict(params)  # type: ignore[arg-type]  # checked, here or by the caller
        if not checked:
            values = self.contract.space.validated(params, where=f"app {self.name} {self.contract.version}")
        digest = self._with_files(
            self.digest if digest is None else digest,
            values,
            declared(self.function, values, self._settings_at(values), site),
        )
        return Manifest(
            execution_id=Manifest.identify(
                app=self.name,
                app_version=self.contract.version,
                input_digest=digest,
                params=values,
                seed=seed,
                replicate=replicate,
                upstream=upstream,
                extends=extends,
                times=times,
            ),
            app=self.name,
            app_version=self.contract.version,
            input_digest=digest,
            params=values,
            seed=seed,
            replicate=replicate,
            upstream=upstream,
            role=role,
            batch=batch,
            index=index,
            resources=self.contract.resources_for(values),
            requested_by=requested_by,
            priority=priority,
            created_at=time.time(),
            extends=extends,
            times=times,
            **{"estimated_runtime_s": self.contract.estimated_runtime_s, **(estimates or {})},
        )

    def order(
        self,
        manifest: Manifest,
        *,
        work: Path,
        site: Mapping[str, Any],
        promises: Mapping[str, tuple[str, bool]] | None = None,
        attempt: int = 1,
    ) -> dict[str, Any]:
        """The plain data a worker needs to run a manifest (see `hpcagent.apps.worker`).

        Args:
            manifest: What to run.
            work: The folder that holds one directory for each execution id.
            site: `name`, `node_cores`, `launcher`, `launchers`, `apps`, `gpu_env`; each may be missing.
            promises: From `promises`, with the metrics that must be there beyond those the contract requires.
            attempt: 1, or more after an infrastructure failure.
        """
        settings = self._settings_at(manifest.params)
        files = declared(self.function, manifest.params, settings, site)
        choices = chosen(self.contract.space, manifest.params, work.parent)
        return (
            {
                "manifest": manifest.model_dump(),
                "function": self.function or self._sent or (self._callable and carried.carry(self._callable)),
                "settings": settings,
                "workdir": f"{work}/{manifest.execution_id}",
                "promises": self.promises() if promises is None else promises,
                "site": site,
                "attempt": attempt,
                "files": files,
                "modules": self.made_of,
                "outdated": self._outdated(manifest, files),
            }
            | self._left_out(manifest)
            | self._speeds(manifest)
            | ({"chosen": choices} if choices else {})
            | ({"mpi": True} if self.mpi else {})
        )

    def _settings_at(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The settings, with the names of files that a point chooses: they lie in the run's own directory."""
        names = [f.name for p in self.contract.space.choosing for f in p.files if params.get(p.name) == f.name]
        return {**self.settings, "chosen": names} if names else self.settings

    def _with_files(self, digest: str, params: Mapping[str, Any], files: Mapping[str, str]) -> str:
        """The digest with the files that decide the numbers at a point: declared, or chosen by it."""
        return with_files(digest, {**files, **contents(self.contract.space.choosing, params)})

    def _left_out(self, manifest: Manifest) -> dict[str, Any]:
        """The defaults of parameters that are left out of the manifest, for the function's arguments."""
        rest = {p.name: p.default for p in self.contract.space.parameters if p.name not in manifest.params}
        given = {name: default for name, default in rest.items() if default is not None}
        return {"left_out": given} if given else {}

    def _speeds(self, manifest: Manifest) -> dict[str, Any]:
        """Of a call: what a result that was computed on other resources does not tell."""
        if manifest.role not in ("direct", "part"):
            return {}
        speeds = sorted(self.contract.timed)
        return {"speeds": speeds} if speeds else {}

    def _outdated(self, manifest: Manifest, files: Mapping[str, str]) -> bool:
        """Whether files have changed since the manifest was made; of one without its files nobody knows."""
        # Of a file that parameters name it is known which one it is: planned with it, a run is none without it.
        if not files and not self.settings.get("reads"):
            return False
        digest = self.digest
        params = manifest.params
        return manifest.input_digest not in (
            self._with_files(digest, params, {}),
            self._with_files(digest, params, files),
        )

    def promises(self, required: Iterable[str] = ()) -> dict[str, tuple[str, bool]]:
        """Metric -> (unit, whether a run without it is a failure)."""
        needed = set(required)
        return {m.name: (m.unit, m.required or m.name in needed) for m in self.contract.metrics}

    def __call__(
        self, *upstream: Any, seed: int | None = None, replicate: int | None = None, **params: Any
    ) -> AppFuture | Part:
        """Start one run on the open site, or, in the function of a chain, as an inner run of it.

        Args:
            upstream: The runs this app takes as input: futures or `Result`s. Where it takes a structure, an ASE
                `Atoms` or the path of a structure file will do; where it takes a `run`, the path of a trajectory,
                a LAMMPS log or a thermo.csv. A future of another Parsl app is waited for, and its value taken.
            seed: Random seed handed to the app; 0 if not given, in a chain the chain's.
            replicate: A counter for deliberate repetitions of the same parameters; likewise.
            params: The app's parameters, in the units of its contract.

        Returns:
            A Parsl `AppFuture` (of a chain, or in one: another future); its result is a `Result`, also when the
            run failed.

        Raises:
            NoSite: Neither a site nor a Parsl configuration is open.
            BadInput: A parameter is not allowed, or an input is missing.
        """
        from hpcagent.apps.structures import given

        if not self.contract.takes(len(upstream)):
            wanted = ", ".join(self.contract.inputs) or "no"
            raise BadInput(
                f"app {self.name!r} takes {wanted} input run(s) as positional arguments; got {len(upstream)}. "
                "Parameters are given by name."
            )
        names = self.contract.inputs
        inputs = tuple(given(valued(one), names[min(i, len(names) - 1)]) for i, one in enumerate(upstream))
        chain = CALLER.get()
        if chain is not None:
            return chain.ask(self, inputs, params, seed, replicate)
        return by_hand()(self, inputs, params, seed=seed or 0, replicate=replicate or 0)


def check_names(space: Space, where: str, instead: str) -> None:
    """Refuse a parameter that a call would take for the run's own seed or replicate.

    Raises:
        BadInput: A parameter is called `seed` or `replicate`.
    """
    for name in ("seed", "replicate"):
        if name in space:
            raise BadInput(
                f"{where}: a parameter cannot be called {name!r}, since app({name}=...) gives the run its own "
                f"{name}; {instead if name == 'seed' else 'give it another name'}.",
                value=name,
            )


# Settings that apps did not have from the beginning: with these values an app is what it was before they came, and
# the execution ids of old run directories stay.
_LATER = {"dipole": "off"}


def _counting(settings: Mapping[str, Any], function: str, *without: str) -> dict[str, Any]:
    """The settings that decide a result; how its runs are started, and their limits, does not."""
    made = counting(settings, function)
    kept = ((k, v) for k, v in made.items() if k not in without and not is_mode(k, function))
    return {k: v for k, v in kept if k not in _LATER or v != _LATER[k]}


def declared_settings(settings: Mapping[str, Any], files: tuple[str, ...]) -> dict[str, Any]:
    """The settings of an app before anybody has changed them; `files` are those that are paths of files."""
    made = {k: _plain(v, f"setting {k!r}") for k, v in settings.items()}
    if files:
        made |= dict.fromkeys(files, "") | {"files": dict.fromkeys(files, ""), "paths": dict.fromkeys(files, "")}
    return made


def _with_file(settings: Mapping[str, Any], name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, (str, Path)):
        raise BadInput(f"setting {name!r} is the path of a file; got {value!r}.", value=value)
    path = Path(value).expanduser().absolute() if str(value) else None
    if path is not None and not path.is_file():
        raise BadInput(f"setting {name!r}: {value}: no such file.", value=str(value))
    digest = "" if path is None else sha256(path)
    return {
        name: "" if path is None else path.name,
        "files": {**settings["files"], name: digest},
        "paths": {**settings["paths"], name: "" if path is None else str(path)},
    }


def _plain(value: object, where: str) -> Any:
    """The value as plain data: what JSON can say."""
    try:
        return json.loads(canonical_json(value))
    except (TypeError, ValueError):
        raise BadInput(
            f"{where} is {value!r}; it must be plain data: numbers, texts, lists and dicts of them.", value=value
        ) from None


__getattr__ = moved(__name__, {"app": "hpcagent.apps.decorator"})
