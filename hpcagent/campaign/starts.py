"""Starting campaigns: a folder that runs as it is, to be made one's own."""

from __future__ import annotations

from pathlib import Path

from hpcagent import packaged
from hpcagent.errors import BadInput, nearest
from hpcagent.store.files import refusing_clearly

__all__ = ["list_starts", "write_start"]


def list_starts() -> dict[str, str]:
    """Kind -> the question of its campaign, the first sentence of its file.

    Example:
        >>> sorted(list_starts())
        ['dft', 'executable', 'function', 'lammps']
    """
    found = {}
    for path in sorted(packaged.folder("starts").glob("*/campaign.toml")):
        comments: list[str] = []
        for line in path.read_text().splitlines():
            if not line.startswith("# "):
                break
            comments.append(line.removeprefix("# "))
        found[path.parent.name] = " ".join(comments)
    return found


def write_start(kind: str, folder: str | Path = ".") -> list[Path]:
    """Write a starting campaign; `hpcagent run campaign.toml` in that folder runs it at once.

    Args:
        kind: `lammps`, `executable`, `function` or `dft`.
        folder: Where to; made if it is not there.

    Returns:
        The files, the campaign first.

    Raises:
        BadInput: There is no such kind, or one of the files is there already; nothing is written then.
        StoreFull: The folder cannot be written.
    """
    known = list_starts()
    if kind not in known:
        raise BadInput(f"no starting campaign {kind!r}; {nearest(kind, known)}", value=kind)
    source, target = packaged.folder("starts") / kind, Path(folder).expanduser()
    files = sorted((p for p in source.iterdir() if p.is_file()), key=lambda p: (p.name != "campaign.toml", p.name))
    for path in files:
        if (target / path.name).exists() or (target / path.name).is_symlink():
            raise BadInput(
                f"{target / path.name} is there already and is not overwritten; name another folder: "
                f"hpcagent init {kind} FOLDER.",
                value=str(target / path.name),
            )
    written = []
    with refusing_clearly(target):
        target.mkdir(parents=True, exist_ok=True)
        for path in files:
            content = path.read_bytes()
            with (target / path.name).open("xb") as file:
                file.write(content)
            if content.startswith(b"#!"):  # a wheel does not keep that it is a program
                (target / path.name).chmod((target / path.name).stat().st_mode | 0o111)
            written.append(target / path.name)
    return written
