"""Where the packaged data is: in a wheel, an editable install or a checkout."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

from hpcagent.errors import BadInput

__all__ = ["folder"]

FOLDERS = ("configs", "lammps_inputs", "site_profiles", "starts")


@functools.cache
def folder(name: str) -> Path:
    """Return the folder of packaged data called `name`.

    Args:
        name: `configs`, `site_profiles`, `lammps_inputs` or `starts`.

    Raises:
        BadInput: There is no such packaged folder, or the installation lacks it.

    Example:
        >>> (folder("site_profiles") / "laptop.toml").is_file()
        True
    """
    if name not in FOLDERS:
        raise BadInput(f"{name!r} is no packaged folder; known: {', '.join(FOLDERS)}.", value=name)
    # In a wheel the folder is a subpackage, in a checkout it lies beside the package.
    package = Path(__file__).resolve().parent
    for place in (package / name, package.parent / name):
        if (place / "__init__.py").is_file():
            return place
    # An editable install may have put it anywhere; its import hook knows.
    spec = find_spec(f"hpcagent.{name}")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    raise BadInput(
        f"the packaged folder {name!r} is missing from this installation ({Path(__file__).parent}); "
        "reinstall hpcagent.",
        value=name,
    )
