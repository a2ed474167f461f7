"""A run before an analysis, as the analysis gets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def upstream(folder: Path, trajectory: str, **artifacts: str) -> dict[str, Any]:
    return {"status": "COMPLETED", "workdir": str(folder), "artifacts": {"trajectory": trajectory, **artifacts}}
