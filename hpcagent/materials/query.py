"""One question, any database of materials: own results, tables, ASE databases, OPTIMADE providers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, in_brief
from hpcagent.materials.answer import Answer, Source
from hpcagent.materials.filters import Asked, Filters
from hpcagent.resources.database import Database
from hpcagent.resources.folder import Resources

__all__ = ["query_materials_database", "source_behind"]


def query_materials_database(
    query: str,
    filters: Filters | Mapping[str, object] | None = None,
    *,
    source: Source | Database | str | Path,
    limit: int = 50,
    offset: int = 0,
) -> Answer:
    """Ask a database of materials.

    Args:
        query: A formula, or several with `-` or `/` between: `Cu-ZnO`. Their elements must be in what is found; in
            a table of catalysts it is the metal and its support. May be empty. Words and SQL are refused.
        filters: `Filters`, or plain data of them: elements, nelements, formula, ranges with units, texts.
        source: A table from `Resources.database`; the path of an ASE database or of folders with campaigns; the
            address of an OPTIMADE provider (`https://...`); `Campaigns`, `AseDatabase`, `Optimade`; or anything
            with a method `find`. There is none by default.
        limit: Largest number of records, 1 to 1000.
        offset: How many to leave out before.

    Returns:
        Records with their artifact ids, and the source, its version, the question as sent, how many there are.

    Raises:
        BadInput: The question is none, or the source cannot judge a part of it; nothing is dropped.
        NotPermitted: The role may not read that table.
        SourceFailed: The source is not there, or answers against its protocol.

    Example:
        >>> import os, tempfile
        >>> from ase.build import bulk
        >>> from ase.db import connect
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "bulk.db")
        ...     with connect(path) as file:
        ...         ids = [file.write(bulk(name), gap=gap) for name, gap in (("Si", 1.1), ("C", 5.5), ("Cu", 0.0))]
        ...     answer = query_materials_database("", {"ranges": {"gap": {"min": 1.0}}}, source=path)
        >>> sorted(r.formula for r in answer), answer.total
        (['C', 'Si'], 2)
    """
    return _source_of(source).find(Asked.of(query, filters, limit, offset))


def source_behind(resources: Resources, name: str) -> Source:
    """What a resource is as a source: a table, or the database that a proxy stands for.

    Args:
        resources: Opened by somebody.
        name: Of a resource of the type `database`.

    Raises:
        NotPermitted: The caller may not read it.
        BadInput: There is none of this name, or it is no database.
    """
    record = resources.record(name)
    if record.content.format not in ("ase", "optimade"):
        return _source_of(resources.database(name))
    resources.require(**{name: "read"})
    from hpcagent.materials.from_ase import AseDatabase
    from hpcagent.materials.from_optimade import Optimade

    target = record.storage.target
    return AseDatabase(target) if record.content.format == "ase" else Optimade(target)


def _source_of(given: Any) -> Source:
    """A source from whatever may stand for one."""
    from hpcagent.materials.from_ase import AseDatabase
    from hpcagent.materials.from_campaigns import Campaigns
    from hpcagent.materials.from_optimade import Optimade
    from hpcagent.materials.from_table import CatalystTable

    if isinstance(given, Database):
        return CatalystTable(given)
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        return Optimade(given)
    if isinstance(given, (str, Path)):
        path = Path(given).expanduser()
        if path.is_dir():
            return Campaigns(path)
        if path.is_file():
            return AseDatabase(path)
        raise BadInput(
            f"{path} is neither a file nor a folder here; a source is an ASE database, a folder of campaigns, the "
            "address of an OPTIMADE provider, or a table of resources.",
            value=str(path),
        )
    if callable(getattr(given, "find", None)):
        found: Source = given
        return found
    raise BadInput(
        f"{in_brief(given)} is no source of materials; see query_materials_database.", value=in_brief(given)
    )
