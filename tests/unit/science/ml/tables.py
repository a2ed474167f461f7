"""Tables with known laws, and apps called as a worker calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.apps.base import App
from hpcagent.apps.run import Outcome, Run


def called(
    app: App, workdir: Path, *, seed: int = 0, paths: dict[str, Path] | None = None, **params: Any
) -> Outcome:
    """The outcome of an app with the defaults of its contract."""
    workdir.mkdir(parents=True, exist_ok=True)
    whole = {p.name: p.default for p in app.contract.space.parameters if p.default is not None} | params
    settings = {"paths": {name: str(path) for name, path in (paths or {}).items()}}
    assert app.plain_function is not None
    outcome: Outcome = app.plain_function(run=Run(workdir=workdir, seed=seed, settings=settings), **whole)
    return outcome


def waves(path: Path, seed: int, n: int = 150, *, groups: int = 15, more: str = "") -> Path:
    """y = sin(3 a) + b^2 with noise of 0.1, and of 0.3 where a > 0; a in eV, y in GPa, `groups` values of g."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    y = np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + np.where(x[:, 0] > 0, 0.3, 0.1) * rng.normal(size=n)
    lines = [f"{a!r},{b!r},{v!r},g{i % groups}" for i, (a, b, v) in enumerate(np.column_stack([x, y]).tolist())]
    path.write_text("a [eV],b,y [GPa],g\n" + "\n".join(lines) + f"\n{more}")
    return path
