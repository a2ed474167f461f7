"""The results of one's own campaigns as a database of materials."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.campaign.folders import find_campaigns
from hpcagent.errors import AppFailed, BadInput, HpcAgentError
from hpcagent.materials.answer import Answer, Found
from hpcagent.materials.filters import Asked
from hpcagent.model.base import canonical_json
from hpcagent.model.parameter import Parameter
from hpcagent.model.records import Result

__all__ = ["Campaigns"]


@dataclass(frozen=True, slots=True)
class _Folder:
    """A campaign's folder, read once."""

    path: Path
    app: str
    units: Mapping[str, str]  # of metrics and of numeric parameters
    texts: frozenset[str]
    results: tuple[Result, ...]


class Campaigns:
    """Completed runs of campaigns, by their folders. Folders are read and not changed, also while a campaign runs.

    `ranges` are about metrics, and parameters where no metric has the name; `texts` about parameters and `app`.
    What is asked of atoms is judged by the structure that a run has made; runs without one are not in the answer,
    which says how many they are.

    Args:
        folders: Of campaigns, or folders that they are in.

    Example:
        >>> import tempfile
        >>> import hpcagent as ha
        >>> from hpcagent.materials import Campaigns, query_materials_database
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ran = ha.run("synthetic", site="threads", run_dir=folder)
        ...     best = {"ranges": {"value": {"min": 50.0, "unit": "1"}}}
        ...     answer = query_materials_database("", best, source=Campaigns(folder), limit=1)
        >>> answer.shown, answer.total == sum(r.metrics.get("value", 0.0) >= 50.0 for r in ran.results)
        (1, True)
    """

    def __init__(self, *folders: str | Path) -> None:
        if not folders:
            raise BadInput("no folder of a campaign is given; name one, or one that they are in.")
        self._given = tuple(Path(f).expanduser() for f in folders)

    def find(self, asked: Asked) -> Answer:
        """See `Source`."""
        folders, notes = self._read()
        numbers = {name for f in folders for name in f.units}
        texts = {name for f in folders for name in f.texts} | {"app"}
        asked.refuse_unknown(f"what ran in {self._said}", numbers=numbers, texts=texts)
        records, total, without = [], 0, 0
        for folder in folders:
            for result in folder.results:
                if not result.ok or not _matches(result, folder, asked):
                    continue
                counts = _counts(result) if asked.about_atoms else {}
                if counts is None:
                    without += 1
                    continue
                if asked.about_atoms and not asked.holds_for(counts):
                    continue
                if asked.offset <= total < asked.offset + asked.limit:
                    records.append(_record(result, folder))
                total += 1
        if without:
            notes.append(
                f"{without} runs have made no structure that can be read here, so their atoms are not known"
            )
        newest = max((r.ended_at for f in folders for r in f.results), default=0.0)
        return Answer(
            source=f"campaigns:{self._said}",
            version=f"{sum(len(f.results) for f in folders)} results in {len(folders)} campaigns, the last ended "
            f"at {newest:.0f} (Unix time, s)",
            asked_at=time.time(),
            query=canonical_json(
                {"query": asked.query, **asked.filters.model_dump(exclude_none=True, exclude_defaults=True)}
            ),
            records=tuple(records),
            total=total,
            offset=asked.offset,
            notes=tuple(notes),
        )

    @property
    def _said(self) -> str:
        return ", ".join(map(str, self._given))

    def _read(self) -> tuple[list[_Folder], list[str]]:
        from hpcagent.runs.opened import open_run

        found, notes = [], []
        paths = list(dict.fromkeys(path for one in self._given for path in find_campaigns(one)))
        for path in paths:
            try:
                run = open_run(path)
                contract, results = run.campaign.app.contract, run.results
            except HpcAgentError as error:
                notes.append(f"{path} cannot be read: {error.message}")
                continue
            parameters = contract.space.parameters
            units = {p.name: p.unit for p in parameters if _is_number(p)}
            units |= {m.name: m.unit for m in contract.metrics}
            texts = frozenset(p.name for p in parameters if p.name not in units)
            found.append(_Folder(path, contract.name, units, texts, results))
        if not found:
            why = f" ({'; '.join(notes)})" if notes else ""
            raise BadInput(f"no campaign that can be read is in {self._said}{why}.", value=self._said)
        return found, notes


def _is_number(parameter: Parameter) -> bool:
    return parameter.kind in ("float", "int") or bool(
        parameter.choices
        and all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in parameter.choices)
    )


def _matches(result: Result, folder: _Folder, asked: Asked) -> bool:
    for name, wanted in asked.filters.ranges.items():
        if name not in folder.units:
            return False
        unit = result.units.get(name, folder.units[name])
        low, high = wanted.within(unit, name)
        value = result.metrics.get(name, result.manifest.params.get(name))
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        if (low is not None and value < low) or (high is not None and value > high):
            return False
    for name, texts in asked.filters.texts.items():
        text = folder.app if name == "app" else result.manifest.params.get(name)
        if text not in ((texts,) if isinstance(texts, str) else texts):
            return False
    return True


def _counts(result: Result) -> dict[str, int] | None:
    """Composition of the structure that a run has made; None where there is none here."""
    from hpcagent.apps.structures import structure_of

    if "structure" not in result.artifacts:
        return None
    try:
        atoms = structure_of({"artifacts": result.artifacts, "workdir": result.workdir})
    except (AppFailed, OSError, ValueError, StopIteration):
        return None
    symbols: list[str] = atoms.get_chemical_symbols()
    return {s: symbols.count(s) for s in dict.fromkeys(symbols)}


def _record(result: Result, folder: _Folder) -> Found:
    from hpcagent.materials.formulas import reduced_text

    params = {
        n: float(v) if isinstance(v, int) and not isinstance(v, bool) else v
        for n, v in result.manifest.params.items()
    }
    values: dict[str, Any] = {
        "app": folder.app,
        **{n: v if isinstance(v, (float, str)) else str(v) for n, v in params.items()},
        **result.metrics,
    }
    return Found(
        artifact_id=f"run:{result.manifest.execution_id}",
        formula=reduced_text(_counts(result) or {}),
        values=values,
        units={n: result.units.get(n, u) for n, u in folder.units.items() if n in values},
        uncertainty=dict(result.uncertainty),
        where=result.place,
    )
