"""`hpcagent sites`, `apps`, `inputs`: what there is, and one of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.common import say
from hpcagent.errors import BadInput
from hpcagent.shown import without_secrets

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the commands."""
    cli.command()(sites)
    cli.command()(apps)
    cli.command()(inputs)


def sites(name: Annotated[str | None, typer.Argument(help="Show this profile.")] = None) -> None:
    """List the site profiles (* is what auto means here), or show one."""
    from hpcagent.sites.new_profile import summary
    from hpcagent.sites.profiles import find_profile, identify_site, list_profiles

    if name is None:
        try:
            here = identify_site().name
        except BadInput as error:
            here = ""
            say(f"auto: {error}", file=sys.stderr)
        for entry in list_profiles():
            mark = "*" if entry.name == here else " "
            say(f"{entry.name:15}{mark} {entry.description}  ({entry.source})")
        return
    from hpcagent.sites.several_profiles import one_site

    profile = one_site(find_profile(name), "`hpcagent sites NAME` is")
    shown = without_secrets(profile.model_dump(mode="json", exclude_none=True))
    say(json.dumps(shown, indent=2, ensure_ascii=False))
    if profile.batch:
        say(summary(profile), file=sys.stderr)


def apps(
    name: Annotated[str | None, typer.Argument(help="Show this app: a name, a script or a contract.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="The JSON Schema of its parameters.")] = False,
) -> None:
    """List the apps, or show one's contract."""
    from hpcagent.catalog import list_apps, look_up

    if name is None:
        for found in list_apps():
            kind, about = "chain" if found.chain else found.contract.app_type, found.contract.description
            why = found.contract.deprecated
            say(f"{found.name:21} {kind:11} " + (about if why is None else f"deprecated: {why} ({about})"))
        own = "your own input script, or TOML of any program: name its path (`apps lammps`: a contract's schema)"
        say(f"{'lammps':21} {'simulation':11} {own}")
        return
    if name == "lammps":
        from hpcagent.science.lammps.contract_file import ContractFile

        say(json.dumps(ContractFile.model_json_schema(), indent=2))
        return
    contract = look_up(name).contract
    say(json.dumps(contract.space.json_schema(), indent=2) if schema else contract.model_dump_json(indent=2))


def inputs(
    name: Annotated[str | None, typer.Argument(help="Copy this input to a folder of your own.")] = None,
    to: Annotated[Path, typer.Option("--to", help="Where the copy goes.")] = Path(),
) -> None:
    """List the LAMMPS inputs that come along, or copy one to work on."""
    import shutil

    from hpcagent.science.lammps.contract import lammps, packaged_inputs
    from hpcagent.store.files import refusing_clearly

    known = packaged_inputs()
    if name is None:
        for found, path in known.items():
            say(f"{found:12} {lammps(found).contract.description}  ({path.parent})")
        return
    if name not in known:
        from hpcagent.errors import nearest

        raise BadInput(f"no packaged input {name!r}; {nearest(name, known)}", value=name)
    copies = [(path, to / path.name) for path in sorted(known[name].parent.iterdir()) if path.is_file()]
    for _, target in copies:
        if target.exists():
            raise BadInput(f"{target} is there already; name another folder with --to.", value=str(target))
    with refusing_clearly(to):
        to.mkdir(parents=True, exist_ok=True)
        for path, target in copies:
            shutil.copyfile(path, target)
            say(target)
