"""A campaign read from its TOML file, from a packaged one, or from the folder of one that ran."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from hpcagent import packaged
from hpcagent.apps.base import App
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.sweep_space import spanned
from hpcagent.catalog import find_app
from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import build, explain, open_regular, read_record, read_toml
from hpcagent.model.texts import as_name
from hpcagent.store.rundir import RunDir

__all__ = ["list_configs", "load_campaign", "load_run"]


def load_campaign(
    source: str | Path, *, changes: Mapping[str, Any] | None = None, app: App | None = None, where: str = ""
) -> Campaign:
    """Read a campaign from a TOML file or by the name of a packaged one.

    Args:
        source: A path, or a name that `list_configs` knows.
        changes: Dotted key -> value, e.g. `{"until.max_runs": 12}`; goes before the file.
        app: The app itself, where the file's reference does not lead to it any more (a resumed campaign).
        where: What messages call it; by default its path.

    Raises:
        BadInput: One sentence on the first thing that is wrong.

    Example:
        >>> load_campaign("synthetic", changes={"seed": 7}).seed
        7
    """
    path = _find_config(str(source))
    where = where or str(path)
    return build(Campaign, _campaign_data(path, changes, app, where), where=where)


def _campaign_data(path: Path, changes: Mapping[str, Any] | None, app: App | None, where: str) -> dict[str, Any]:
    """A campaign's TOML, with its app, and its files found beside it."""
    data = read_toml(path)
    swept: Any = None
    for key, value in (changes or {}).items():
        # Of the two tables that exclude each other, the one that is asked for now.
        table = key.partition(".")[0]
        other = {"policy": "sweep", "sweep": "policy"}.get(table)
        if other is not None and table not in data:
            dropped = data.pop(other, None)
            swept = dropped if other == "sweep" else None
        _set(data, key, value, where)
    _drop_other_goals(data, changes or {})
    if app is None:
        if "app" not in data:
            raise BadInput(f"{where}: the key 'app' is missing; name a LAMMPS script, a contract or an app.")
        if not isinstance(data["app"], str):
            raise BadInput(f"{where}, app: name the app with a string; got {data['app']!r}.")
        app = find_app(data["app"], relative_to=path.parent)
    if isinstance(data.get("settings"), dict):
        data["settings"] = _beside(data["settings"], app, path.parent)
    if isinstance(data.get("cache"), str):
        data["cache"] = str(path.parent.absolute() / Path(data["cache"]).expanduser())
    if isinstance(data.get("earlier"), list):
        # What is given beside the file is relative to where it is given.
        place = Path() if "earlier" in (changes or {}) else path.parent
        data["earlier"] = [_from(place, folder) for folder in data["earlier"]]
    if isinstance(swept, Mapping):  # another policy goes on in the space that the sweep spanned
        data["space"] = spanned(app.contract.space, swept, data.get("space"))
    data["app"] = app
    data.setdefault("name", path.stem)
    return data


def load_run(
    run_dir: str | Path, *, changes: Mapping[str, Any] | None = None, to_read: bool = False, app: App | None = None
) -> Campaign:
    """Read the campaign of a run directory: its TOML, and the app exactly as it ran.

    Args:
        run_dir: The folder.
        changes: Dotted key -> value that goes before the TOML, e.g. `{"until.max_runs": 72}`.
        to_read: Only results are to be read, nothing is to be run: keys that this version does not know are then
            left out and told of (`unread`), where otherwise they are refused, as they may change what is run.
        app: What is to run from now on in place of the recorded app, e.g. with a wider range of a parameter.

    Raises:
        BadInput: The folder is not that of a campaign, its files are damaged, or it belongs to another user.
    """
    folder = RunDir(run_dir)
    folder.require()
    folder.require_own()
    unknown: dict[str, None] = {}
    written = _read_app(folder.app, unknown)
    if unknown and not to_read:
        raise BadInput(
            f"{folder.app} has {', '.join(unknown)}, which this version does not know: a newer one wrote it, "
            "and it may change what is run. Go on with that version; `hpcagent status`, `report` and `export` "
            "read the folder as it is.",
            value=", ".join(unknown),
        )
    try:
        data = _campaign_data(folder.campaign, changes, written if app is None else app, str(folder.campaign))
        if isinstance(data["name"], str):
            data["name"] = as_name(data["name"])  # of before names were checked; it decides nothing here
        if to_read:
            known = {*Campaign.model_fields, "sweep"}
            unknown |= {key: None for key in data if key not in known}
            data = {key: value for key, value in data.items() if key in known}
        campaign = build(Campaign, data, where=str(folder.campaign))
    except BadInput as error:
        if changes:
            raise
        raise BadInput(f"{error.message} {_PUT_BACK}", **error.details) from None
    if unknown:
        words = f"campaign.toml or app.json has {', '.join(unknown)}, which this version does not know"
        campaign._unread = (words,)
    return campaign


_PUT_BACK = (
    "It is the campaign as it ran: correct it, or put it back from a copy or from the file that the campaign was "
    "begun with."
)


def _read_app(path: Path, unknown: dict[str, None]) -> App:
    try:
        # Its files count by what is recorded: looked at anew, a changed one would be compared with itself.
        with open_regular(path) as file:
            text = file.read()
        return read_record(App, from_json(text), unknown).recorded()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; it belongs beside events.jsonl.") from None
    except ValidationError as error:
        raise BadInput(f"{explain(App, error, str(path)).message} The file is damaged. {_PUT_BACK}") from None
    except (ValueError, TypeError) as error:
        raise BadInput(f"{path} is damaged: {error}. {_PUT_BACK}") from None


def _from(place: Path, folder: Any) -> Any:
    """A folder that is named relative to `place`."""
    return str(place.absolute() / Path(folder).expanduser()) if isinstance(folder, str) else folder


def _beside(settings: dict[str, Any], app: App, folder: Path) -> dict[str, Any]:
    """The settings, with files that are named relative to the campaign's file found there."""
    found = dict(settings)
    for name in app.settings.get("files", {}):
        given = settings.get(name)
        if isinstance(given, str) and given and (folder / Path(given).expanduser()).is_file():
            found[name] = str(folder.absolute() / Path(given).expanduser())
    return found


def list_configs() -> dict[str, Path]:
    """Name -> path of the packaged campaigns."""
    return {path.stem: path for path in sorted(packaged.folder("configs").glob("*.toml"))}


def _find_config(source: str) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
        return path
    known = list_configs()
    if source in known:
        return known[source]
    if path.suffix == ".toml" or "/" in source:
        raise BadInput(f"{source}: no such campaign file.", value=source)
    raise BadInput(f"no campaign {source!r}, neither a file nor packaged; {nearest(source, known)}", value=source)


def _drop_other_goals(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """What is to be maximised or minimised is asked anew as a whole; limits stay."""
    asked = {key.partition(".")[2] for key in changes if key in ("objective.maximize", "objective.minimize")}
    objective = data.get("objective")
    if asked and isinstance(objective, dict):
        for key in {"maximize", "minimize", "goals"} - asked:
            objective.pop(key, None)


def _set(data: dict[str, Any], dotted: str, value: Any, where: str) -> None:
    *folders, last = dotted.split(".")
    table = data
    for key in folders:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise BadInput(f"{where}: {dotted!r} cannot be set, {key!r} is no table.", value=dotted)
        table = inner
    table[last] = value
