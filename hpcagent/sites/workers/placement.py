"""Which cores and GPUs of a block a run gets: several runs share a node, one run may span several.

Parsl's MPIExecutor gives every run whole nodes, so that eight runs of four ranks on a node of 32 cores take
turns. Here the interchange, which alone knows what is running where, hands out cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Room", "share"]

_Parts = Mapping[str, tuple[list[int], list[str]]]
"""Cores and GPUs of each node, by its name."""


def share(needs: Mapping[str, Any], hosts: int, cores: int, gpus: int) -> float:
    """Return which part of an empty block a run takes, to tell how many blocks are wanted.

    Args:
        needs: `nodes`, `cores` and `gpus` on each of them.
        hosts: Nodes of the block.
        cores: Cores of each.
        gpus: GPUs of each.

    Example:
        >>> share({"nodes": 1, "cores": 4}, hosts=2, cores=32, gpus=0)
        0.0625
        >>> share({"nodes": 2, "cores": 20}, hosts=2, cores=32, gpus=0)
        1.0
    """
    beside = cores // max(1, int(needs.get("cores", 1)))
    if needs.get("gpus"):
        beside = min(beside, gpus // int(needs["gpus"]))
    return int(needs.get("nodes", 1)) / hosts / max(1, beside)


class Room:
    """The cores and GPUs of a block, and who has them.

    Args:
        hosts: `name`, `cores` (their numbers) and `gpus` (their ids) of each node, the manager's own first.
        ends_at: Unix time after which nothing is to run any more, or None.
        lasts_s: How long the block was to be usable, before the start of its workers took a part of that.
        fresh_until: Unix time until which a run may come that wants all of it; see `could`.
    """

    def __init__(
        self,
        hosts: Sequence[Mapping[str, Any]],
        ends_at: float | None = None,
        *,
        lasts_s: float | None = None,
        fresh_until: float = 0.0,
    ) -> None:
        self.ends_at = ends_at
        self._lasts_s = lasts_s or 0.0
        self._fresh_until = fresh_until
        self._first = str(hosts[0]["name"])
        self._all = {str(h["name"]): (list(h["cores"]), list(h.get("gpus", ()))) for h in hosts}
        self._free = {name: (list(cores), list(gpus)) for name, (cores, gpus) in self._all.items()}
        self._taken: dict[int, list[dict[str, Any]]] = {}

    def could(self, needs: Mapping[str, Any], now: float) -> bool:
        """Whether a run would fit if nothing else ran here.

        One that wants as long as a block lasts fits while the block is fresh, although some seconds have gone by:
        no other block would have more of them, and blocks would be asked for and given back for ever.

        Example:
            >>> room = Room([{"name": "n1", "cores": [0]}], ends_at=98.0, lasts_s=100.0, fresh_until=10.0)
            >>> [room.could({"walltime_s": 100.0}, now) for now in (2.0, 11.0)]
            [True, False]
        """
        return self._in_time(needs, now) and self._fit(needs, self._all) is not None

    def take(self, task_id: int, needs: Mapping[str, Any], now: float) -> dict[str, Any] | None:
        """Return the place of a run, which has it until `give`; None if it does not fit beside what runs.

        Returns:
            `hosts`: name, cores and gpus on each node; `first`: the node that the manager is on.

        Example:
            >>> room = Room([{"name": "n1", "cores": [0, 1]}, {"name": "n2", "cores": [0, 1]}])
            >>> room.take(1, {"nodes": 1, "cores": 1, "ranks": 2}, 0.0)["hosts"]
            [{'name': 'n1', 'cores': [0], 'gpus': []}]
            >>> room.take(2, {"nodes": 2, "cores": 2}, 0.0) is None
            True
        """
        place = self._fit(needs, self._free) if self._in_time(needs, now) else None
        if place is None:
            return None
        for part in place:
            cores, gpus = self._free[part["name"]]
            self._free[part["name"]] = (
                [c for c in cores if c not in part["cores"]],
                [g for g in gpus if g not in part["gpus"]],
            )
        self._taken[task_id] = place
        return {"hosts": place, "first": self._first}

    def holders(self) -> list[int]:
        """Tasks that have a part of it."""
        return list(self._taken)

    def give(self, task_id: int) -> None:
        """Take back what a run had; one that had nothing is no error."""
        for part in self._taken.pop(task_id, ()):
            cores, gpus = self._free[part["name"]]
            order = self._all[part["name"]]
            self._free[part["name"]] = (
                sorted([*cores, *part["cores"]], key=order[0].index),
                sorted([*gpus, *part["gpus"]], key=order[1].index),
            )

    def _in_time(self, needs: Mapping[str, Any], now: float) -> bool:
        wanted = float(needs.get("walltime_s") or 0.0)
        if self.ends_at is None or now + wanted <= self.ends_at:
            return True
        return now <= self._fresh_until and wanted <= self._lasts_s

    def _fit(self, needs: Mapping[str, Any], free: _Parts) -> list[dict[str, Any]] | None:
        """What a run would get: of the fullest nodes that can take it, so that empty ones stay whole."""
        cores, gpus = int(needs.get("cores", 1)), int(needs.get("gpus", 0))
        fitting = [name for name, (c, g) in free.items() if len(c) >= cores and len(g) >= gpus]
        if needs.get("here"):  # runs in the worker itself, which is on the manager's node
            fitting = [name for name in fitting if name == self._first]
        wanted = int(needs.get("nodes", 1))
        if len(fitting) < wanted:
            return None
        fitting.sort(key=lambda name: len(free[name][0]))
        place = _alike(fitting, wanted, free, cores, gpus)
        if place is None and _alike(list(self._all), wanted, self._all, cores, gpus) is None:
            # Nodes that name their cores differently never agree; a launcher then binds nothing.
            place = [
                {"name": name, "cores": _together(free[name][0], cores), "gpus": free[name][1][:gpus]}
                for name in fitting[:wanted]
            ]
        return place


def _alike(names: Sequence[str], wanted: int, free: _Parts, cores: int, gpus: int) -> list[dict[str, Any]] | None:
    """So many of the nodes with the same cores and GPUs free, the first that will do; None if there are none.

    A launcher is told one list of cores for all nodes of a run, and its processes one list of GPUs.
    """
    for first in range(len(names) - wanted + 1):
        found = [names[first]]
        same_cores, same_gpus = set(free[names[first]][0]), set(free[names[first]][1])
        for name in names[first + 1 :]:
            if len(found) == wanted:
                break
            fewer_cores, fewer_gpus = same_cores & set(free[name][0]), same_gpus & set(free[name][1])
            if len(fewer_cores) >= cores and len(fewer_gpus) >= gpus:
                found.append(name)
                same_cores, same_gpus = fewer_cores, fewer_gpus
        if len(found) == wanted and len(same_cores) >= cores and len(same_gpus) >= gpus:
            mine = _together([core for core in free[found[0]][0] if core in same_cores], cores)
            ids = [gpu for gpu in free[found[0]][1] if gpu in same_gpus][:gpus]
            return [{"name": name, "cores": list(mine), "gpus": list(ids)} for name in found]
    return None


def _together(cores: Sequence[int], count: int) -> list[int]:
    """`count` of the cores, neighbours if there are some: they share caches."""
    for first in range(len(cores) - count + 1):
        if cores[first + count - 1] - cores[first] == count - 1:
            return list(cores[first : first + count])
    return list(cores[:count])
