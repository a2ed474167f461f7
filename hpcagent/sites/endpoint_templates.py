"""Endpoint configurations that come along: copied out, edited, and given to `globus-compute-endpoint`."""

from __future__ import annotations

import shutil
from pathlib import Path

from hpcagent import packaged
from hpcagent.errors import BadInput, nearest
from hpcagent.store.files import refusing_clearly

__all__ = ["TEMPLATE_FILES", "copy_template", "templates"]

TEMPLATE_FILES = ("user_config_template.yaml.j2", "user_config_schema.json")
"""Names that the endpoint's own configuration has."""


def templates() -> dict[str, Path]:
    """Return the folders of the packaged templates, by name.

    Example:
        >>> list(templates())
        ['machine', 'pbs', 'slurm']
    """
    found = sorted((packaged.folder("site_profiles") / "globus").iterdir())
    return {folder.name: folder for folder in found if (folder / TEMPLATE_FILES[0]).is_file()}


def copy_template(name: str, to: Path) -> list[Path]:
    """Copy a template out.

    Args:
        name: `slurm`, `pbs` or `machine`.
        to: A folder; made if it is not there.

    Returns:
        The new files.

    Raises:
        BadInput: There is no such template, a file of that name is there already, or the folder cannot be written.
    """
    known = templates()
    if name not in known:
        raise BadInput(f"there is no endpoint template {name!r}; {nearest(name, known)}", value=name)
    targets = [to / file for file in TEMPLATE_FILES]
    for target in targets:
        if target.exists():
            raise BadInput(f"{target} is there already; name another folder, or remove it.", value=str(target))
    with refusing_clearly(to):
        to.mkdir(parents=True, exist_ok=True)
        for target in targets:
            shutil.copyfile(known[name] / target.name, target)
    return targets
