"""`hpcagent mcp`: a workspace for MCP clients, over stdin and stdout or HTTP; what clients need to find it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcagent.commands.common import say
from hpcagent.errors import BadInput

if TYPE_CHECKING:
    from hpcagent.mcp.client_config import OverHttp, OverStdio

__all__ = ["add"]

ENVIRONMENT = ("PATH", "PYTHONPATH", "HPCAGENT_ACCOUNT", "HPCAGENT_LAMMPS", "HPCAGENT_SITE_PATH")
NEEDS = "the MCP server needs a package that is not installed: pip install 'hpcagent[mcp]'"


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(mcp)


def mcp(
    where: Annotated[
        Path | None,
        typer.Option("--workspace", "-w", metavar="DIR", help="By default $HPCAGENT_WORKSPACE, or .hpcagent."),
    ] = None,
    as_: Annotated[str, typer.Option("--as", metavar="NAME", help="Speak for somebody of workspace.toml.")] = "",
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP, not over stdin and stdout.")] = False,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="--http: where it listens.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="--http: a free one by default.", show_default=False)
    ] = 0,
    token: Annotated[
        bool, typer.Option("--token/--no-token", help="--http: whether the server's own token is needed.")
    ] = True,
    issuer: Annotated[
        str, typer.Option("--issuer", metavar="URL", help="--http: take tokens of this issuer (JWT).")
    ] = "",
    jwks: Annotated[str, typer.Option("--jwks", metavar="FILE|URL", help="--issuer: its public keys.")] = "",
    audience: Annotated[
        str, typer.Option("--audience", metavar="TEXT", help="--issuer: `aud` of tokens; the URL by default.")
    ] = "",
    person_claim: Annotated[
        str, typer.Option("--person-claim", metavar="CLAIM", help="--issuer: the claim that says who it is.")
    ] = "sub",
    resource_url: Annotated[
        str, typer.Option("--resource-url", metavar="URL", help="--http: its URL as clients and tokens name it.")
    ] = "",
    per_s: Annotated[
        float, typer.Option("--per-s", min=0.1, metavar="N", help="Requests a second of each caller.")
    ] = 200.0,
    burst: Annotated[
        int, typer.Option("--burst", min=1, metavar="N", help="So many at once after a pause.")
    ] = 2000,
    print_config: Annotated[
        str,
        typer.Option(
            "--print-config",
            metavar="CLIENT",
            help="Print what a client needs, serve nothing: claude, claude-code, cursor, vscode, codex, gemini.",
        ),
    ] = "",
    ssh: Annotated[
        str, typer.Option("--ssh", metavar="USER@HOST", help="--print-config: the client starts it there.")
    ] = "",
    show_token: Annotated[
        bool, typer.Option("--show-token", help="--print-config: with the token in it; alone: print the token.")
    ] = False,
) -> None:
    """Serve a workspace to an MCP client; runs go on when it ends."""
    from hpcagent.workspace.folder import Folder, find_folder

    only_http = {
        "--host": host != "127.0.0.1",
        "--port": port != 0,
        "--no-token": not token,
        "--issuer": bool(issuer),
        "--resource-url": bool(resource_url),
    }
    _refuse_useless(only_http, "--http", http)
    only_issuer = {"--jwks": bool(jwks), "--audience": bool(audience), "--person-claim": person_claim != "sub"}
    _refuse_useless(only_issuer, "--issuer", bool(issuer))
    _refuse_useless({"--ssh": bool(ssh)}, "--print-config", bool(print_config))
    if issuer and not jwks:
        raise BadInput("--issuer needs --jwks: the path or URL of the issuer's public keys.", value=issuer)
    if issuer and (as_ or not token):
        raise BadInput(f"{'--as' if as_ else '--no-token'} and --issuer: a token of an issuer says who asks.")
    folder = Folder(find_folder(where))
    known = folder.read_rules().people
    if as_ and as_ not in known:
        raise BadInput(f"--as {as_}: workspace.toml names {', '.join(known) or 'nobody'}.", value=as_)
    if print_config:
        how = _over_http(folder.root, host, port, resource_url, token and not issuer, bool(issuer), show_token)
        _print_config(print_config, how if http else _over_stdio(folder.root, as_, ssh))
        return
    if show_token:
        from hpcagent.mcp.own_token import own_token

        say(own_token(folder.root))
        return
    if not http:
        _serve_stdio(folder.root, as_, burst, per_s)
        return
    _serve_http(
        folder.root,
        host=host,
        port=port,
        as_=as_,
        token=token,
        issuer=(issuer, jwks, audience, person_claim),
        resource_url=resource_url,
        limits=(burst, per_s),
    )


def _refuse_useless(given: dict[str, bool], of: str, there: bool) -> None:
    useless = next((option for option, is_given in given.items() if is_given), "")
    if useless and not there:
        raise BadInput(f"{useless} has a meaning with {of} only.")


def _serve_stdio(folder: Path, as_: str, burst: int, per_s: float) -> None:
    try:
        from hpcagent.mcp.stdio import own_streams, quiet_logging, serve_stdio
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    with own_streams() as wire:
        quiet_logging()
        try:
            from hpcagent.mcp.limits import Limits
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        serve_stdio(folder, as_=as_, wire=wire, limits=Limits(burst=burst, per_s=per_s))


def _serve_http(
    folder: Path,
    *,
    host: str,
    port: int,
    as_: str,
    token: bool,
    issuer: tuple[str, str, str, str],
    resource_url: str,
    limits: tuple[int, float],
) -> None:
    try:
        from hpcagent.mcp.http import Issuer, serve_http
        from hpcagent.mcp.limits import Limits
        from hpcagent.mcp.stdio import quiet_logging
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    quiet_logging()
    url, jwks, audience, claim = issuer
    if not token:
        say("warning: no token is needed: every user of this machine may call, in your name", file=sys.stderr)
    serve_http(
        folder,
        host=host,
        port=port,
        as_=as_,
        token=token,
        issuer=Issuer(url, jwks, audience=audience, person_claim=claim) if url else None,
        resource_url=resource_url,
        limits=Limits(burst=limits[0], per_s=limits[1]),
        begun=lambda url: say(f"serving {folder} at {url}; Ctrl-C ends it", flush=True),
    )


def _missing(error: ModuleNotFoundError) -> Exception:
    """One clear error for the extra; a module of ours that is missing is a bug, and stays one."""
    name = error.name or ""
    return error if name.split(".")[0] == "hpcagent" else BadInput(f"{NEEDS} ({name} is missing).", value=name)


def _over_stdio(folder: Path, as_: str, ssh: str) -> OverStdio:
    from hpcagent.mcp.client_config import OverStdio

    command = (*_own_command(), "mcp", "--workspace", str(folder), *(("--as", as_) if as_ else ()))
    # Clients start programs with little of an environment; the scheduler's commands and LAMMPS are on the PATH.
    env = {name: os.environ[name] for name in ENVIRONMENT if os.environ.get(name)}
    return OverStdio(command, env, ssh)


def _own_command() -> tuple[str, ...]:
    """The absolute path of this very command."""
    found = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "hpcagent" else None
    if found is not None:
        return (str(Path(found).absolute()),)
    return (sys.executable, "-P", "-c", "from hpcagent.cli import main; main()")


def _over_http(
    folder: Path, host: str, port: int, resource_url: str, own: bool, issued: bool, show_token: bool
) -> Any:
    """The server as clients reach it; None: nothing is known of one over HTTP."""
    from hpcagent.mcp.client_config import OverHttp

    if not port and not resource_url:
        return None
    if show_token and issued:
        raise BadInput("--show-token: the tokens are the issuer's; this server has none of its own.")
    token = ""
    if show_token and own:
        from hpcagent.mcp.own_token import own_token

        token = own_token(folder)
    shown = f"[{host}]" if ":" in host else host
    return OverHttp(resource_url or f"http://{shown}:{port}/mcp", token, own or issued)


def _print_config(client: str, how: OverStdio | OverHttp | None) -> None:
    from hpcagent.mcp.client_config import config_of

    if how is None:
        raise BadInput("--print-config with --http needs the --port of the server, or its --resource-url.")
    text, note = config_of(client, how)
    say(text)
    say(f"note: {note}", file=sys.stderr)
