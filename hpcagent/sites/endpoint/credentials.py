"""Who one is to Globus: from the environment or Globus's own token store, and never asked for by the way.

A client id and secret in the environment (`GLOBUS_COMPUTE_CLIENT_ID`, `GLOBUS_COMPUTE_CLIENT_SECRET`) come first.
Without them it is the login that Globus's programs keep in `~/.globus_compute` (`GLOBUS_COMPUTE_USER_DIR` moves
it). Only `login` asks, in a terminal; everything else says what to do.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcagent.errors import BadInput, SiteFailed
from hpcagent.lifeline import FORKS
from hpcagent.shown import HIDDEN

if TYPE_CHECKING:
    from globus_sdk import GlobusApp

__all__ = ["Identity", "app", "expired", "hidden", "identity", "login", "logout", "require_sdk", "whoami"]

CLIENT_ID = "GLOBUS_COMPUTE_CLIENT_ID"
CLIENT_SECRET = "GLOBUS_COMPUTE_CLIENT_SECRET"
FOLDER = "GLOBUS_COMPUTE_USER_DIR"

_LOG_IN = f"log in with `hpcagent globus login` in a terminal, or set both {CLIENT_ID} and {CLIENT_SECRET}"
# A password in an address, as the service gives them for its queue, and tokens of requests.
_IN_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/]*@", re.IGNORECASE)
_TOKEN = re.compile(r"\b(Bearer|Basic)\s+[^\s'\",;)]+", re.IGNORECASE)
_FIELD = re.compile(
    r"(['\"]?\b(?:access_token|refresh_token|id_token|client_secret|password)['\"]?\s*[:=]\s*)[^\s,;&}]+"
)


class Identity(NamedTuple):
    """Where the credentials come from.

    Attributes:
        how: `client` (id and secret in the environment) or `login` (the token store).
        words: For people; names the place, never the secret.
    """

    how: str
    words: str


def require_sdk() -> None:
    """Import Globus's packages.

    Raises:
        BadInput: They are not installed; names the extra.
    """
    try:
        # The SDK registers what happens at exit, and its parts log: not while another thread forks.
        with FORKS:
            import_module("globus_compute_sdk")
    except ImportError as error:
        raise BadInput(
            f'Sites of kind "globus_compute" need the Globus Compute SDK, which is not installed here '
            f"({error}): pip install 'hpcagent[globus]'.",
        ) from None


def hidden(text: str) -> str:
    """A text without what nobody else is to know: the client's secret, tokens, passwords in addresses.

    Example:
        >>> hidden("cannot reach amqps://me:hunter2@mq.example.org:443/ (Bearer abc)")
        'cannot reach amqps://me:(hidden)@mq.example.org:443/ (Bearer (hidden))'
    """
    secret = os.environ.get(CLIENT_SECRET, "")
    if len(secret) >= 4:
        text = text.replace(secret, HIDDEN)
    text = _FIELD.sub(rf"\1{HIDDEN}", text)
    return _TOKEN.sub(rf"\1 {HIDDEN}", _IN_ADDRESS.sub(rf"\1:{HIDDEN}@", text))


def identity() -> Identity:
    """Where the credentials come from; asks nobody and opens nothing.

    Raises:
        BadInput: Only one of the two variables is set.
    """
    name, secret = os.environ.get(CLIENT_ID, ""), os.environ.get(CLIENT_SECRET, "")
    if bool(name) != bool(secret):
        there, missing = (CLIENT_ID, CLIENT_SECRET) if name else (CLIENT_SECRET, CLIENT_ID)
        raise BadInput(
            f"{there} is set in the environment and {missing} is not: a client identity needs both. Set "
            f"{missing}, or unset {there} to use your own login."
        )
    if name:
        return Identity("client", f"client {name[:64]} of the environment ({CLIENT_ID})")
    return Identity("login", f"the login kept in {_folder()}")


def app(*, may_ask: bool = False, transfer: bool = False, collections: Sequence[str] = ()) -> GlobusApp:
    """Globus's application object with valid credentials.

    Args:
        may_ask: Leave the object as Globus makes it, which asks in the terminal when it needs a login.
        transfer: For Globus Transfer, too.
        collections: Ids of collections whose data it is to reach, where those want a consent of their own.

    Raises:
        BadInput: No SDK, or half of a client's credentials.
        SiteFailed: There is no login, or it has expired; says what to do.
    """
    who = identity()
    require_sdk()
    from globus_compute_sdk.sdk.auth.globus_app import DEFAULT_CLIENT_ID, get_globus_app
    from globus_compute_sdk.sdk.auth.token_storage import get_token_storage
    from globus_sdk import ComputeClientV2, GlobusAppConfig, TransferClient, UserApp

    if who.how == "login" and not may_ask and not (_folder() / "storage.db").is_file():
        raise SiteFailed(f"Nobody is logged in to Globus: there is no login in {_folder()}; {_LOG_IN}.")
    try:
        if who.how == "client" or may_ask:
            found: GlobusApp = get_globus_app()
        else:
            # As Globus's own, but where it would ask it fails.
            config = GlobusAppConfig(
                token_storage=get_token_storage(),
                request_refresh_tokens=True,
                token_validation_error_handler=None,
                auto_redrive_gares=False,
            )
            found = UserApp(app_name="hpcagent", client_id=DEFAULT_CLIENT_ID, config=config)
        scopes = ComputeClientV2.default_scope_requirements
        found.add_scope_requirements({ComputeClientV2.resource_server: scopes})
        if transfer:
            found.add_scope_requirements({TransferClient.resource_server: [_transfer_scope(collections)]})
        if who.how == "login" and not may_ask and found.login_required():
            raise SiteFailed(
                f"The login to Globus in {_folder()} has expired, or does not cover Globus "
                f"{'Transfer: `hpcagent globus login --transfer`' if transfer else f'Compute; {_LOG_IN}'}."
            )
    except SiteFailed:
        raise
    except OSError as error:
        raise SiteFailed(f"The login to Globus in {_folder()} cannot be used: {error}.") from None
    except Exception as error:
        words = hidden(f"{type(error).__name__}: {error}")
        raise SiteFailed(
            f"The credentials for Globus ({who.words}) cannot be used: {words[:500]}; {_LOG_IN}."
        ) from None
    return found


def _transfer_scope(collections: Sequence[str]) -> Any:
    """The scope of transfers, with that of the data of mapped collections."""
    from globus_sdk.scopes import GCSCollectionScopes, TransferScopes

    scope = TransferScopes.all
    for collection in collections:
        scope = scope.with_dependency(GCSCollectionScopes(collection).data_access.with_optional(True))
    return scope


def login(*, transfer: bool = False, collections: Sequence[str] = ()) -> str:
    """Log in by Globus's own flow: it shows an address and asks for the code that is found there.

    Args:
        transfer: For Globus Transfer, too.
        collections: Ids of collections that want a consent of their own.

    Returns:
        Who is logged in now, in words.

    Raises:
        BadInput: Nobody can answer (no terminal), or a client's credentials make a login pointless.
        SiteFailed: It failed.
    """
    who = identity()
    if who.how == "client":
        raise BadInput(
            f"There is nothing to log in to: {who.words} is used. Unset {CLIENT_ID} and {CLIENT_SECRET} to log in."
        )
    require_sdk()
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty()):
        raise BadInput(
            "`hpcagent globus login` asks for a code, and there is no terminal here to ask in. Run it in one on "
            f"this machine, or set {CLIENT_ID} and {CLIENT_SECRET}."
        )
    found = app(may_ask=True, transfer=transfer, collections=collections)
    try:
        if found.login_required():
            found.login()
    except KeyboardInterrupt:
        raise
    except Exception as error:
        raise SiteFailed(f"The login failed: {hidden(str(error))[:500]}") from None
    return f"logged in; {who.words}"


def logout() -> str:
    """Revoke and remove the tokens of the login.

    Raises:
        BadInput: A client's credentials are in the environment: there is no login to end.
        SiteFailed: The service could not revoke them.
    """
    who = identity()
    if who.how == "client":
        raise BadInput(
            f"The {who.words} is used, which is no login: unset {CLIENT_ID} and {CLIENT_SECRET} to end a login."
        )
    if not (_folder() / "storage.db").is_file():
        return f"nobody was logged in ({_folder()})"
    try:
        app(may_ask=True).logout()
    except SiteFailed:
        raise
    except Exception as error:
        raise SiteFailed(f"The tokens could not be revoked: {hidden(str(error))[:500]}") from None
    return f"logged out; {who.words} is removed"


def whoami() -> dict[str, Any]:
    """Who one is to Globus, as far as it is known without asking anybody.

    Returns:
        `how`, `words`, and `valid`: whether requests can be made with it; `problem` if not.

    Raises:
        BadInput: No SDK, or half of a client's credentials.
    """
    who = identity()
    about: dict[str, Any] = {"how": who.how, "words": who.words}
    try:
        found = app()
        if who.how == "client":
            from globus_sdk import ComputeClientV2

            found.get_authorizer(ComputeClientV2.resource_server)
    except BadInput:
        raise
    except SiteFailed as error:
        return about | {"valid": False, "problem": error.message}
    except Exception as error:
        words = hidden(f"{type(error).__name__}: {error}")[:500]
        return about | {"valid": False, "problem": f"Globus does not take these credentials: {words}"}
    return about | {"valid": True}


def _folder() -> Path:
    given = os.environ.get(FOLDER)
    return Path(given) if given else Path.home() / ".globus_compute"


def expired(words: str) -> SiteFailed:
    """The service did not take the credentials."""
    who = identity()
    return SiteFailed(f"Globus does not take the credentials ({who.words}): {hidden(words)[:500]}; {_LOG_IN}.")
