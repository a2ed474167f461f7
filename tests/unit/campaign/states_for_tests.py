"""An app whose machine fails some runs until it is repaired; in a module, because `resume` imports it again."""

from __future__ import annotations

import hpcagent as ha


@ha.app(parameters={"x": ha.Choice(0, 1, 2, 3, 4, 5)}, metrics={"y": "1"}, seeded=False)
def measure(x, run):
    """x, but x = 3 fails by itself, and x = 1 and 4 want a program that is not there before it is `repaired`."""
    if x == 3:
        raise ha.AppFailed("x=3 fails.", name="Exploded")
    if x in (1, 4) and not (run.workdir.parent.parent / "repaired").exists():
        raise ha.AppFailed("no program.", name="NoExecutable", kind="infrastructure")
    return {"y": float(x)}
