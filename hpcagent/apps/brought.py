"""Files that decide a run's numbers and lie outside of its app: potentials, pseudopotentials, setups.

What the site's profile names by `[apps.*]`, and what belongs to installed software, is on the endpoint already:
the run looks at its content there. All others are the user's own, and come along.

Imports only the standard library at the top, for workers do.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.luggage import LARGEST, Luggage, is_inside
from hpcagent.apps.placing import Fetch, place_in
from hpcagent.errors import BadInput

__all__ = ["bring", "brought"]

_NAMED = "keywords "
# How an engine is told of a folder: by a setting of the app, or by a variable.
_SETTING = {"espresso": "pseudo_dir", "vasp": "pseudo_dir"}
_VARIABLE = {"gpaw": "GPAW_SETUP_PATH"}
_NAMED_IN_PROFILE = {"espresso": "ESPRESSO_PSEUDO", "vasp": "VASP_PP_PATH", "gpaw": "GPAW_SETUP_PATH"}


def brought(order: Mapping[str, Any], luggage: Luggage) -> list[dict[str, Any]]:
    """The files among those that decide an order's numbers which come along, as `bring` takes them.

    Raises:
        BadInput: One cannot come along: why, and what to do.
    """
    files = order.get("files")
    if not files or not isinstance(order["function"], str):
        return []
    from hpcagent.apps.deciding import places

    params, settings, site = order["manifest"]["params"], order["settings"], order["site"]
    where = places(params, settings, site, function=order["function"])
    paths = {name: Path(where[name]) for name in files if name in where}
    if order["function"] == LAMMPS:
        own = {n: p for n, p in paths.items() if not _in_profile(p, "lammps", site)}
        return list(_of_lammps(own, files, settings, params, luggage))
    engine = str(params.get("engine"))
    own = {n: p for n, p in paths.items() if not (_in_profile(p, engine, site) or _is_software(p))}
    return list(_of_engine(engine, own, files, settings, luggage))


def _in_profile(path: Path, app: str, site: Mapping[str, Any]) -> bool:
    """Whether a variable of the app's environment in the profile names the file, or a folder that it lies in."""
    env = ((site.get("apps") or {}).get(app) or {}).get("env") or {}
    folders = [Path(text) for value in env.values() for text in str(value).split(os.pathsep) if text[:1] == "/"]
    return any(path.is_relative_to(folder) for folder in folders)


def _is_software(path: Path) -> bool:
    if {"site-packages", "dist-packages"}.intersection(path.parts):
        return True
    kept = (Path(__file__).resolve().parents[1], Path("/usr"), *map(Path, sysconfig.get_paths().values()))
    return any(path.is_relative_to(folder) for folder in kept)


def _of_lammps(
    paths: Mapping[str, Path],
    files: Mapping[str, str],
    settings: Mapping[str, Any],
    params: Mapping[str, Any],
    luggage: Luggage,
) -> Iterator[dict[str, Any]]:
    for name, path in paths.items():
        if not name.startswith("/"):
            if not is_inside(name):
                raise BadInput(
                    f"{name}: a potential is sent by its name; put {path} beside the script.", value=name
                )
            file = luggage.file(path, name, files[name]) | {"name": path.name}
            yield {"how": "beside", "files": {name: file}}
            continue
        if name in params.values() or not _as_word(name).search(settings["script"]):
            raise BadInput(
                f"{name}: the script puts this path together from variables, so that it cannot be another one on "
                "the endpoint. Put the file beside the script and name it without a folder, or bring it to the "
                "endpoint and name its folder in the site profile: "
                '[apps.lammps] env = {LAMMPS_POTENTIALS = "..."}.',
                value=name,
            )
        yield {"how": "path", "files": {name: luggage.file(path, name, files[name])}}


def _of_engine(
    engine: str,
    paths: Mapping[str, Path],
    files: Mapping[str, str],
    settings: Mapping[str, Any],
    luggage: Luggage,
) -> Iterator[dict[str, Any]]:
    folder: dict[str, dict[str, Any]] = {}
    for name, path in paths.items():
        if name in (settings.get("files") or {}) or name == "calculator":
            continue  # a setting that is a file, or a module, travels as such
        if name.startswith(_NAMED):
            said = name.removeprefix(_NAMED)
            if said not in _texts(settings):
                raise BadInput(
                    f"{said}: a parameter names this file, so that it cannot be another one on the endpoint; name "
                    "it in `keywords`, or use the name of a set that the engine has.",
                    value=said,
                )
            yield {"how": "path", "files": {name: luggage.file(path, name, files[name])}}
        elif engine in _SETTING or (engine in _VARIABLE and name != "rc.py"):
            place = name if engine == "vasp" else path.name
            folder[name] = luggage.file(path, name, files[name]) | {"name": place}
        else:
            raise BadInput(
                f"{path} decides the numbers of engine {engine!r} here, and cannot be sent to an endpoint: put "
                "what it says into the setting `keywords`, or install it there and here as a package.",
                value=str(path),
            )
    if folder:
        _check_size(engine, folder, luggage)
        yield {"how": engine, "files": folder}


def _check_size(engine: str, folder: Mapping[str, Mapping[str, Any]], luggage: Luggage) -> None:
    sources = [luggage.blobs[file["sha256"]] for file in folder.values()]
    total = sum(source.stat().st_size for source in sources if isinstance(source, Path))
    if total > LARGEST:
        raise BadInput(
            f"the {len(folder)} files that engine {engine!r} may take have {total / 1e6:.0f} MB; up to "
            f"{LARGEST / 1e6:.0f} MB travel with the runs. Bring them to the endpoint and name their folder in "
            f'the site profile: [apps.{engine}] env = {{{_NAMED_IN_PROFILE.get(engine, "")} = "..."}}.',
            value=total,
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


# ---- there


def bring(order: dict[str, Any], brought: Mapping[str, Any], fetch: Fetch, root: Path) -> None:
    """Put files that came along where the run of this order finds them; its settings say so then."""
    how, files, settings = brought["how"], brought["files"], order["settings"]
    folder = place_in(files, fetch, root, "files")
    if how == "beside":
        [(name, file)] = files.items()
        settings["files"] = {**settings.get("files", {}), name: file["sha256"]}
        settings["paths"] = {**settings.get("paths", {}), name: f"{folder}/{file['name']}"}
        settings["only_read"] = [*settings.get("only_read", ()), name]
    elif how == "path":
        [(name, file)] = files.items()
        new = f"{folder}/{file['name']}"
        old = name.removeprefix(_NAMED)
        order["settings"] = _with_path(settings, old, new)
        order["files"] = {n: d for n, d in order["files"].items() if n != name}
        order["files"][name.replace(old, new)] = file["sha256"]
    elif how in _SETTING:
        settings[_SETTING[how]] = folder
        if "family" in files:
            settings["family"] = f"{folder}/{files['family']['name']}"
    elif how in _VARIABLE:
        order["site"] = _with_variable(order["site"], how, _VARIABLE[how], folder)
    else:
        raise BadInput(f"files came for {how!r:.40}, which is not known here: install the same hpcagent there.")


def _with_path(settings: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    changed = {k: v if k in ("paths", "files") else _renamed(v, old, new) for k, v in settings.items()}
    if isinstance(settings.get("script"), str):
        changed["script"] = _as_word(old).sub(lambda _: new, settings["script"])
    return changed


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _renamed(one, old, new) for name, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, old, new) for one in value]
    return new if value == old else value


def _as_word(path: str) -> re.Pattern[str]:
    """The path, where it is a whole word of a script."""
    return re.compile(rf"(?<![^\s\"'=]){re.escape(path)}(?![^\s\"'#&])")


def _with_variable(site: Mapping[str, Any], app: str, name: str, folder: str) -> dict[str, Any]:
    apps = dict(site.get("apps") or {})
    of_app = dict(apps.get(app) or {})
    env = dict(of_app.get("env") or {})
    env[name] = os.pathsep.join(filter(None, (folder, str(env.get(name) or ""))))
    return {**site, "apps": {**apps, app: {**of_app, "env": env}}}
