"""The simulation that needs nothing, by a name of one's own: what an agent tries first."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.errors import NotThere
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.model.base import canonical_json
from hpcagent.workspace.rows import Row
from hpcagent.workspace.runs import Runs

__all__ = ["Simulations"]

SIMULATION = "oscillator"


class Simulations(Runs):
    """Runs of `oscillator`, by the names that callers have for them. Arguments as `Runs`."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self._drawing: set[tuple[str, str, int]] = set()  # seeds of simulations that are being asked for

    def simulation_run(
        self,
        caller: Caller,
        *,
        name: str = "default_simulation",
        max_steps: int = 1000,
        seed: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Start the simulation that needs nothing (`oscillator`) under a name of one's own; returns at once.

        Without a seed one is drawn, and said: the same seed and parameters give the same result. The name is a
        label of the caller's; `run_id` is what is unique.

        Raises:
            NotAllowed: `max_steps`, the seed, the name or a parameter is not allowed.
        """
        with self.gate.recorded(caller, what="simulation_run"):
            if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
                raise NotAllowed("contract", "a name has 1 to 200 printable characters", field="name", value=name)
            most = self.references.app(SIMULATION).contract.space["max_steps"]
            if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
                raise NotAllowed(
                    "contract",
                    "max_steps is a positive whole number",
                    field="max_steps",
                    value=max_steps,
                    allowed=most.range,
                )
            if params is not None and (not isinstance(params, Mapping) or "max_steps" in params):
                raise NotAllowed(
                    "contract",
                    "params is a table of the simulation's other parameters",
                    field="params",
                    value=params,
                    allowed=", ".join(
                        n for n in self.references.app(SIMULATION).contract.space.names if n != "max_steps"
                    ),
                )
        values = {**(params or {}), "max_steps": max_steps}
        with self._drawn(caller, name, values) if seed is None else contextlib.nullcontext(seed) as taken:
            begun = self.run(caller, SIMULATION, values, seed=taken, label=name)
        return self.simulation_get_results(caller, name=begun["id"])

    @contextlib.contextmanager
    def _drawn(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Iterator[int]:
        """A seed that no run of this name has: the same one until a run has it, as while a person is asked."""
        with self._turn:
            used = {row.manifest["seed"] for row in self._simulations(caller, name)}
            for n in itertools.count():
                text = canonical_json([self.rules.name, caller.name, name, dict(values), n])
                seed = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) >> 1
                mine = (caller.name, name, seed)
                if seed not in used and mine not in self._drawing:
                    break
            self._drawing.add(mine)
        try:
            yield seed
        finally:
            with self._turn:
                self._drawing.discard(mine)

    def _simulations(self, caller: Caller, name: str) -> Iterator[Row]:
        """Simulations of that name that the caller has asked for, the newest first."""
        named = (self.rows[identity] for identity in reversed(self._newest))
        return (r for r in named if (r.kind, r.app, r.owner, r.label) == ("run", SIMULATION, caller.name, name))

    def simulation_get_results(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """How a simulation stands, by its `run_id`, or the newest of the caller's by its name; reads only."""
        with self._turn:
            row = self.rows.get(name) or next(self._simulations(caller, name), None)
            if row is None or not self.gate.sees(caller, row.owner) or row.app != SIMULATION:
                raise NotThere(f"there is no simulation {name!r}; simulation_run starts one.", value=name)
            result = row.result or {}
            failure = result.get("failure") or {}
            failed = row.state in ("failed", "stopped", "cancelled")
            params = dict(row.manifest["params"])
            found = {
                "status": "error" if failed else "success",
                "run_id": row.id,
                "steps_completed": int(result.get("metrics", {}).get("steps_completed", 0)),
                "config": {
                    "name": row.label,
                    "max_steps": params.pop("max_steps"),
                    "seed": row.manifest["seed"],
                    "params": params,
                },
                "simulation_status": row.state,
                "results": {
                    n: {"value": v, "unit": result.get("units", {}).get(n, "1")}
                    for n, v in result.get("metrics", {}).items()
                },
            }
            return found | ({"error": failure.get("message") or row.note or row.state} if failed else {})
