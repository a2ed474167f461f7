"""`hpcagent site new`: a first profile of this machine, or of an endpoint."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hpcagent.commands.common import NodesOption, QueueOption, WalltimeOption, group_of, say
from hpcagent.errors import BadInput

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command to the group `site`."""
    group_of(cli, "site").command("new")(site_new)


def site_new(
    name: Annotated[str | None, typer.Argument(help="What the site is to be called.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="slurm, pbs, flux, local or globus_compute; what this machine has by default."
        ),
    ] = None,
    queue: QueueOption = None,
    account: Annotated[
        str | None, typer.Option("--account", help="Written into the profile; better left to the environment.")
    ] = None,
    walltime: WalltimeOption = None,
    nodes: NodesOption = None,
    cores: Annotated[int | None, typer.Option("--cores", min=1, help="Cores of a node.")] = None,
    lammps: Annotated[
        str | None, typer.Option("--lammps", help="The command that starts LAMMPS there; not given: looked for.")
    ] = None,
    worker_init: Annotated[
        str | None, typer.Option("--worker-init", help="Shell line before the workers, e.g. a module load.")
    ] = None,
    endpoint_id: Annotated[
        str | None, typer.Option("--endpoint-id", help="globus_compute: the endpoint's UUID.")
    ] = None,
    work_dir: Annotated[
        str | None, typer.Option("--work-dir", help="globus_compute: the folder there for runs.")
    ] = None,
    runs_at_once: Annotated[
        int | None, typer.Option("--runs-at-once", min=1, help="globus_compute: runs of one core at once there.")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", help="globus_compute: which of `site template` the endpoint has.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the profile (site_profiles here).")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: defaults where nothing is given.")] = False,
) -> None:
    """Write a first profile of this machine's batch system, or of an endpoint."""
    if kind == "globus_compute":
        from hpcagent.sites.new_endpoint_profile import EndpointAnswers, write_endpoint_profile

        for option, useless in (("--worker-init", worker_init), ("--cores", cores)):
            if useless is not None and not (option == "--cores" and template == "pbs"):
                raise BadInput(f"{option}: of an endpoint; write it into the endpoint's template.", value=useless)

        def given(text: str, value: Any) -> Any:
            return value if value is not None or yes else typer.prompt(text)

        name = given("name of the site", name) or "my_endpoint"
        sized = {"account": account, "queue": queue, "walltime": walltime, "nodes_per_block": nodes}
        sized |= {"cpus_per_node": cores}
        answers = EndpointAnswers(
            str(name),
            str(given("UUID of the endpoint", endpoint_id) or ""),
            str(given("folder there for runs", work_dir) or ""),
            None if (at_once := given("runs of one core at once there", runs_at_once)) is None else int(at_once),
            template,
            tuple((key, value) for key, value in sized.items() if value is not None),
            lammps,
        )
        written = write_endpoint_profile(answers, folder=to or Path("site_profiles"))
        site = answers.name if to is None else written
        say(f"{written}\nnext: hpcagent doctor --site {site}\nthen: hpcagent run CAMPAIGN --site {site} --dry-run")
        return
    for option, useless in (
        ("--endpoint-id", endpoint_id),
        ("--work-dir", work_dir),
        ("--runs-at-once", runs_at_once),
        ("--template", template),
    ):
        if useless is not None:
            raise BadInput(f"{option} has a meaning with --kind globus_compute only.", value=useless)
    from hpcagent.sites.new_profile import answered, proposed, queue_table, scheduler_queues, target, write_profile

    folder = to or Path("site_profiles")
    asked = proposed(kind)
    if kind is None:
        from hpcagent.sites.schedulers.present import schedulers_here

        for seen in schedulers_here(os.environ):
            say(seen, file=sys.stderr)

    def ask(key: str, what: str, given: Any, *, if_empty: str = "") -> None:
        """Add one answer: the option's, the default's with --yes, or what is typed, until it can be."""
        nonlocal asked
        default = getattr(asked, key)
        while True:
            if given is not None or yes:
                answer = default if given is None else given
            else:
                text = what if default is not None or not if_empty else f"{what} (empty: {if_empty})"
                shown = "" if default is None else str(default)
                answer = typer.prompt(text, default=shown, show_default=default is not None) or None
            try:
                if key == "name":
                    target(str(answer), folder)
                asked = answered(asked, key, answer)
                return
            except BadInput as error:
                if given is not None or yes:
                    raise
                say(error, file=sys.stderr)

    ask("name", "name of the site", name)
    if asked.kind != "local":
        queues = scheduler_queues(asked.kind)
        say(queue_table(queues), file=sys.stderr)
        asked = proposed(asked.kind, queues=queues)._replace(name=asked.name)
        ask("queue", "queue", queue, if_empty="the scheduler's default")
        ask("account", "account to write down", account, if_empty="from the environment or --account")
        ask("walltime", "walltime of a job", walltime)
        ask("nodes", "nodes of a job", nodes)
        ask("cores", "cores of a node", cores, if_empty="not known")
    ask("lammps", "command that starts LAMMPS", lammps, if_empty="looked for")
    ask("worker_init", "shell line before the workers", worker_init, if_empty="none")
    path = write_profile(asked, folder=folder)
    site = asked.name if to is None else path
    say(f"{path}\nnext: hpcagent doctor --site {site}\nthen: hpcagent run CAMPAIGN --site {site} --dry-run")
