"""Figures written as PNG files, each drawn once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["save"]


def save(figure: Any, path: Path, *, dpi: int) -> None:
    """Lay a figure out and write it.

    `savefig` draws a figure that has a layout engine twice, the first time for the layout alone. The file is the
    same.

    Args:
        figure: With a constrained layout.
        path: Of the PNG file.
        dpi: Pixels per inch.
    """
    figure.set_dpi(dpi)
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)
    figure.savefig(path, dpi=dpi)
