"""The `[ensemble]` table of a campaign: how large a launch is whose ranks its runs share."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field

from hpcagent.apps.base import App
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.modes import ENSEMBLE, MODE
from hpcagent.errors import BadInput
from hpcagent.model.base import Record
from hpcagent.model.contract import Resources
from hpcagent.model.failures import mode

__all__ = ["Ensemble", "refuse_ensemble"]

_QUIT = re.compile(r"^[^#\n]*\bquit\b", re.MULTILINE)


class Ensemble(Record):
    """One launch of an ensemble. What is left out is what the site's executor has.

    Attributes:
        nodes: Nodes of a launch.
        ranks: MPI ranks of a launch, over all of its nodes; each run takes its own number of them.

    Example:
        >>> Ensemble(ranks=4).toml()
        {'ranks': 4}
    """

    nodes: int | None = Field(default=None, ge=1)
    ranks: int | None = Field(default=None, ge=1)

    def toml(self) -> dict[str, Any]:
        """The table."""
        return self.model_dump(mode="json", exclude_none=True)

    def check(self, app: App) -> None:
        """Raise `BadInput` where the runs of this app do not share launches."""
        if not app.shares_launches:
            raise BadInput(
                f'ensemble: the app {app.name!r} is not in mode "{ENSEMBLE}", so that the table says nothing; add '
                f'mode = "{ENSEMBLE}" to [settings], or drop [ensemble].',
                value=app.settings.get(MODE),
            )
        refuse_ensemble(app)

    def launch(self, run: Resources, *, nodes: int, cores: int) -> tuple[Resources, int]:
        """The resources of a launch for runs like this one, and how many go at once in it.

        Args:
            run: Resources of one run.
            nodes: How many nodes the site's executor gives a launch.
            cores: How many cores each of them has.

        Raises:
            BadInput: What is asked for does not fit the runs.

        Example:
            >>> Ensemble().launch(Resources(ranks_per_node=2), nodes=2, cores=8)[1]
            8
        """
        nodes = self.nodes or max(nodes, run.nodes)
        if nodes % run.nodes:
            raise BadInput(
                f"ensemble.nodes={nodes}: runs of {run.nodes} nodes do not fill it; take a multiple.", value=nodes
            )
        per_run = run.nodes * run.ranks_per_node
        if self.ranks is None:
            slots = max(1, cores // (run.ranks_per_node * run.threads_per_rank)) * (nodes // run.nodes)
        else:
            slots = self.ranks // per_run
            if slots < 1 or self.ranks % (per_run * (nodes // run.nodes)):
                raise BadInput(
                    f"ensemble.ranks={self.ranks}: runs of {per_run} rank(s) on {nodes} node(s) do not fill it; "
                    f"take a multiple of {per_run * (nodes // run.nodes)}.",
                    value=self.ranks,
                )
        return run.model_copy(update={"nodes": nodes, "ranks_per_node": slots * per_run // nodes}), slots


def refuse_ensemble(app: App) -> None:
    """Raise `BadInput` where the runs of an app cannot share a launch."""
    if app.chain:
        raise BadInput(
            f"mode {ENSEMBLE!r}: the app {app.name!r} is a chain, whose own runs are started one by one; leave "
            "the mode out, or give it to the apps that the chain calls.",
            value=app.name,
        )
    script = str(app.settings.get("script", "")) if app.function == LAMMPS else ""
    if _QUIT.search(script):
        raise BadInput(
            f"mode {ENSEMBLE!r}: the script of {app.name!r} has the command `quit`, which ends the process that "
            'other runs are to use after it. Drop the command, or take mode = "executable".',
            value="quit",
        )
    rules = (app.settings.get("repairs") or {}).get("rules", ()) if app.function == LAMMPS else ()
    ending = [name for name in rules if (row := mode(name)) is not None and row.damages]
    if ending:
        raise BadInput(
            f"mode {ENSEMBLE!r}: repairs.{ending[0]} of {app.name!r} cannot be made: that failure ends the "
            'process that would try the run again. Drop the repair, or take mode = "library".',
            value=ending[0],
        )
    if app.contract.resources.gpus_per_node or "gpus_per_node" in app.contract.resources_from:
        raise BadInput(
            f"mode {ENSEMBLE!r}: runs of {app.name!r} take GPUs, which the ranks of one launch would all share; "
            'take mode = "executable" or "library".',
            value=app.contract.resources.gpus_per_node,
        )
