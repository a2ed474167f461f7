"""What scripts and the shell ask of a workspace about single runs."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.invocation import Invocation
from hpcagent.errors import BadInput
from hpcagent.workspace.apps_here import AppsHere
from hpcagent.workspace.connection import Answer

__all__ = ["RunCalls"]

LONGEST_WAIT_S = 300.0


class RunCalls(AppsHere):
    """Calls of `Workspace` about single runs and their files."""

    def run(
        self,
        app: str | App,
        params: Mapping[str, Any] | None = None,
        *,
        site: str = "",
        site_kind: str = "",
        seed: int = 0,
        replicate: int = 0,
        inputs: Sequence[str] = (),
        walltime_s: float | None = None,
        settings: Mapping[str, Any] | None = None,
        resources: Mapping[str, Any] | None = None,
        why: str = "",
        label: str = "",
        again: bool = False,
        anywhere: bool = False,
        data_only: bool = False,
    ) -> Answer:
        """Start a run, or find the one that did the same work; returns at once.

        Args:
            app: Its name (`lj_argon`, `lj_argon@0.2.0`), the path of a script, or `module:function`; or the app
                itself, with the settings and resources that it has.
            params: In the units of its contract; those not given take their defaults. A file of an earlier run is
                `artifact:RUN/PATH`.
            site: Where it runs; by default as `workspace.toml` says.
            site_kind: Refuse a site whose profile has another `kind`, e.g. where it is to be `slurm`.
            seed: Random seed.
            replicate: A counter for deliberate repetitions.
            inputs: Ids of the runs that it takes as input.
            walltime_s: Wall time after which it is ended, in seconds, in place of what the app says: a
                bound of its node-hours.
            settings: Of the app, as `App.with_settings` takes them.
            resources: As `App.with_resources` takes them, e.g. `{"nodes": 2}`.
            why: What it is for, for whoever approves it.
            label: What the caller calls it; need not be unique.
            again: Do it once more where the same work has ended, as the next replicate.
            anywhere: What was done on another site, or with other nodes and ranks, will do also where the app
                measures times or speeds; else such work is done anew, as the next replicate.
            data_only: Refuse settings and parameters that may be code, or name a file of this machine: for doors
                whose callers are not known as this user is.

        Returns:
            `id`, `state`, `found` (whether the same work was known), `workdir`; `site`, `resources`, `replicate`,
            `asked_at` and `ended_at` of the work, and in `note` why nothing ran anew.

        Raises:
            NotAllowed: The gate refuses it: `check`, `field`, `value`, `allowed`, `do`, `approval`.
        """
        return self._one(
            "run",
            **self._asked(app, settings, resources),
            params=dict(params or {}) if data_only else self._from_here(app, params or {}),
            site=site,
            site_kind=site_kind,
            seed=seed,
            replicate=replicate,
            inputs=list(inputs),
            walltime_s=walltime_s,
            why=why,
            label=label,
            again=again,
            anywhere=anywhere,
            data_only=data_only,
        )

    def estimate(self, app: str | App, params: Mapping[str, Any] | None = None, **more: Any) -> Answer:
        """What a run would take, and what the gate would say; nothing is run. Arguments as `run`."""
        settings, resources = more.pop("settings", None), more.pop("resources", None)
        asked_for = self._asked(app, settings, resources)
        found = dict(params or {}) if more.get("data_only") else self._from_here(app, params or {})
        return self._one("estimate", **asked_for, params=found, **more)

    def apps(self, query: str = "") -> Any:
        """Apps and approved tools that the caller may use: `name`, `version`, `description` of each.

        Args:
            query: Words of name, description, kind, engine, parameters or metrics; those with all of them first.
        """
        return self._call("apps", query=query)

    def invoke(self, invocation: Invocation, *, site: str = "", why: str = "") -> Answer:
        """Start the run that an invocation writes down, as it is written: of packaged apps as they are.

        Args:
            invocation: Its budget bounds the run; its approval has to be one of this very request.
            site: Where it runs.
            why: What it is for.

        Raises:
            NotAllowed: It was changed, is of another version or code, or the gate refuses it.
        """
        return self._one("invoke", invocation=invocation.model_dump(mode="json"), site=site, why=why)

    def invocation(self, identity: str) -> Invocation:
        """A run as an invocation: the same call, written once, with its approval."""
        return Invocation.model_validate(self._one("invocation", identity=identity))

    def status(self, identity: str, *, lines: int = 40) -> Answer:
        """State, metrics with units and errors, failure, cost, the last lines of the log, `progress`.

        `progress` is None unless it runs and something is known: `done` `of` so many in `unit` (steps of the
        LAMMPS `run` command that goes on, runs of a campaign, else seconds), `share` (0 to 1), `from` what says
        it, `elapsed_s`, `expected_s`. `changed_at` (Unix time, s) is when it has come to stand as it does, of a
        campaign that goes on that of its last event. `rc` is 0 of a run that is completed, else the exit code
        that its failure names, or None; `workdir` its directory.
        """
        return self._one("status", identity=identity, lines=lines)

    def wait(self, identity: str, timeout_s: float | None = None) -> Answer:
        """Its status once it has ended.

        Raises:
            TimeoutError: It has not ended within `timeout_s`.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = LONGEST_WAIT_S if until is None else until - time.monotonic()
            status = self._one("wait", identity=identity, timeout_s=max(0.0, min(left, LONGEST_WAIT_S)))
            if status["ended_at"] is not None:
                return status
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"run {identity} has not ended within {timeout_s:g} s ({status['state']}).")

    def list(self, *, state: str = "", app: str = "", after: str = "", most: int = 100) -> Answer:
        """Runs, the newest first, a page at a time: `runs`, and `after` for the next page."""
        return self._one("list", state=state, app=app, after=after, most=most)

    def cancel(self, identity: str) -> Answer:
        """Keep a run from being done, or end it."""
        return self._one("cancel", identity=identity)

    def artifacts(self, identity: str, *, below: str = "") -> Any:
        """Files of a run or campaign: `path`, `bytes`; the first ten thousand by name.

        Args:
            identity: The run or campaign.
            below: Only those in this folder: a campaign's run has its in `work/EXECUTION_ID`.

        Raises:
            BadInput: There is no such run, or `below` leads elsewhere.
        """
        return self._call("artifacts", identity=identity, below=below)

    def fetch(self, identity: str, path: str, to: str | Path | None = None) -> bytes | Path:
        """A file of a run, as bytes, or written to `to`; into a folder that is there, under its own name.

        Returns:
            Its bytes, or where it is written.

        Raises:
            BadInput: The run has no such file, or there is one already where it would be written, or none can be.
        """
        if to is None:
            return b"".join(self._pieces(identity, path))
        target = _target(to, path)
        with _new_file(target) as write:
            for data in self._pieces(identity, path):
                write(data)
        return target

    def _pieces(self, identity: str, path: str) -> Iterator[bytes]:
        """A file of a run, piece by piece."""
        at: int | None = 0
        while at is not None:
            piece = self.piece(identity, path, offset=at)
            data = base64.b64decode(piece["data"])
            yield data
            at = piece["next"] if data else None

    def piece(self, identity: str, path: str, *, offset: int = 0, length: int = 1 << 20) -> Answer:
        """A piece of a run's file.

        Args:
            identity: The run.
            path: As `artifacts` says it.
            offset: First byte.
            length: Bytes at most, 8 MiB.

        Returns:
            `path`, `bytes` of the whole file, `offset`, `data` in base64, `next` (offset; None at the end).

        Raises:
            BadInput: The run has no such file, or the piece is none of it.
        """
        return self._one("fetch", identity=identity, path=path, offset=offset, length=length)

    def repeat(
        self,
        changes: str | Sequence[str],
        identity: str = "",
        *,
        other_version: bool = False,
        why: str = "",
        data_only: bool = False,
    ) -> Answer:
        """An earlier run with something changed: "the same with skin 1 angstrom".

        Args:
            changes: `skin=1 angstrom`, `temperature +50 K`, `timestep /2`; one or several.
            identity: The run; empty: the newest of the caller's.
            other_version: Go on where the app has another version now.
            why: What it is for.
            data_only: What is changed may name no file of this machine.

        Returns:
            As `run`, with `since`, `app`, `version`, `params`, `units`, `changes`, `notes`.

        Raises:
            NotAllowed: A unit is missing or wrong, a value is out of bounds, or the gate refuses it.
        """
        several = [changes] if isinstance(changes, str) else list(changes)
        more = {"other_version": other_version, "why": why, "data_only": data_only}
        return self._one("repeat", changes=several, identity=identity, **more)

    def estimate_repeat(
        self,
        changes: str | Sequence[str],
        identity: str = "",
        *,
        other_version: bool = False,
        data_only: bool = False,
    ) -> Answer:
        """What `repeat` with these arguments would take, as `estimate` says it; nothing is run."""
        several = [changes] if isinstance(changes, str) else list(changes)
        more = {"other_version": other_version, "data_only": data_only}
        return self._one("estimate_repeat", changes=several, identity=identity, **more)

    def simulation_run(
        self,
        name: str = "default_simulation",
        max_steps: int = 1000,
        seed: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Start the simulation that needs nothing (`oscillator`) under a name of one's own; returns at once.

        Args:
            name: A label; the newest of that name is found by it, `run_id` is what is unique.
            max_steps: Steps to make.
            seed: Draws the start; without it one is drawn, and stands in `config`.
            params: `timestep` (fs), `mass` (u), `spring` (eV/angstrom^2), `temperature` (K).

        Returns:
            `status`, `run_id`, `steps_completed`, `config`, `simulation_status`, `results` with units, `error`.
        """
        return self._one("simulation_run", name=name, max_steps=max_steps, seed=seed, params=params)

    def simulation_get_results(self, name: str = "default_simulation") -> Answer:
        """How a simulation stands, by its `run_id` or its name; see `simulation_run`."""
        return self._one("simulation_get_results", name=name)

    def catalyst(
        self,
        structure: str,
        adsorbate: str,
        *,
        catalyst: str = "",
        accept: str = "same_method",
        threshold_ev: float = -1.2,
        parameters: Mapping[str, Any] | None = None,
        site: str = "",
        walltime_s: float | None = None,
        why: str = "",
    ) -> Answer:
        """A catalyst's adsorption energy: what is known, or the run that computes it; returns at once.

        `hpcagent.materials.run_catalyst` waits and does the same. Here the service stores the result, writes it
        into the notebook and tells it when the run has ended, whatever has become of the caller.

        Args:
            structure: An element.
            adsorbate: An atom or a molecule of `ase.build.molecule`.
            catalyst: What it is called, e.g. `Cu-ZnO`.
            accept: Which row of `catalyst_db` will do: `same_method` or `any_method`.
            threshold_ev: Below this it is promising, in eV.
            parameters: Of the chain `adsorption`, e.g. `{"engine": "emt"}`.
            site: Where it runs.
            walltime_s: In seconds.
            why: What it is for.

        Returns:
            `state` (found, pending, running, recording, recorded, failed), `run_id`, `adsorption_energy_ev`,
            `result_uri`, `row`, `promising`, `notes`, `error`.

        Raises:
            NotAllowed: A value is not allowed, or the gate refuses the run.
            NotPermitted: The role may not read the table, or may not store what would be computed.
        """
        return self._one(
            "catalyst",
            structure=structure,
            adsorbate=adsorbate,
            catalyst=catalyst,
            accept=accept,
            threshold_ev=threshold_ev,
            parameters=dict(parameters or {}),
            site=site,
            walltime_s=walltime_s,
            why=why,
        )

    def estimate_catalyst(
        self, structure: str, adsorbate: str, *, parameters: Mapping[str, Any] | None = None, **more: Any
    ) -> Answer:
        """What `catalyst` would take, and what the gate would say; nothing is run. Arguments as `catalyst`.

        Returns:
            As `estimate`; `known` is also what `catalyst_db` has, and then nothing is taken.

        Raises:
            NotAllowed: A value is not allowed.
            NotPermitted: The role may not read the table.
        """
        asked = {"structure": structure, "adsorbate": adsorbate, "parameters": dict(parameters or {})}
        return self._one("estimate_catalyst", **asked, **more)

    def catalyst_state(self, identity: str) -> Answer:
        """How a catalyst stands that a run computes; fields as `catalyst`."""
        return self._one("catalyst_state", identity=identity)


def _target(to: str | Path, path: str) -> Path:
    """Where a file of a run is written.

    Args:
        to: A folder that is there, or the file's new name.
        path: Of the file, in the run.

    Raises:
        BadInput: No file can have this name.
    """
    name = Path(path).name
    there = False
    with contextlib.suppress(OSError):  # as of a name that is too long, which is refused when it is written
        there = Path(to).is_dir()
    if there:
        if name in ("", ".."):
            raise BadInput(f"{path!r} is the name of no file.", value=path)
        return Path(to) / name
    if str(to).endswith("/"):
        raise BadInput(f"{to} cannot be written: there is no such folder.", value=str(to))
    return Path(to)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Writes a file that is there under its name once all of it is; whatever ends that before leaves nothing.

    Raises:
        BadInput: It is there already, or cannot be written.
    """
    part = path.with_name(f".fetched.{secrets.token_hex(8)}.part")
    try:
        with _refusing(path):
            if os.path.lexists(path):
                raise FileExistsError
            file = part.open("xb", buffering=0)
        with file:

            def write(data: bytes) -> None:
                with _refusing(path):
                    left = memoryview(data)
                    while left:
                        left = left[file.write(left) :]

            yield write
        with _refusing(path):
            _named(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _named(part: Path, path: Path) -> None:
    """Give a file its name; unlike a rename it replaces nothing that has come meanwhile.

    Raises:
        OSError: There is one, or it cannot be written.
    """
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # this file system has no second names
        if os.path.lexists(path):
            raise FileExistsError from None
        part.replace(path)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise BadInput(f"{path} is there already: name another file, or remove it.", value=str(path)) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}.", value=str(path)) from None
