"""Records made fit for others: no absolute paths of this machine, no host and user names, no secrets."""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic_core import from_json, to_json

from hpcagent.owners import user_name
from hpcagent.shown import masked, without_secrets
from hpcagent.store.journal import event_in

__all__ = ["Masking"]

# What identifies a run, or says what it may be, stays as it is: its id would not be its own any more.
_IDENTIFIES = frozenset(
    {
        *("params", "input_digest", "upstream", "execution_id", "contract", "space", "fixed", "sweep"),
        *("reference", "points", "confirm", "fidelity"),
    }
)
_HOSTS = frozenset({"host", "hosts", "hostname", "node"})
_PEOPLE = frozenset({"user", "owner", "account", "mail", "email"})
_ABSOLUTE = re.compile(
    r"(?<![\w/.~:<-])/(?!(?:usr|bin|lib|lib64|dev|proc|sys|etc|opt|tmp)\b)[\w.+-]+(?:/[\w.+@=-]+)+"
)


class Masking:
    """Replaces what tells of this machine and its users; keeps count of what it could not.

    The campaign's folder becomes `.`, the home folder `~`, the working directory `<here>`; hosts become `host1`,
    `host2`, ...; the user `user`. Values that identify runs (parameters) are left, see `left`.

    Args:
        root: The campaign's folder.

    Attributes:
        left: Absolute paths that stay, as runs would have other identities without them, or as they are others'.
    """

    def __init__(self, root: Path) -> None:
        self._hosts: dict[str, str] = {}
        self.left: dict[str, None] = {}
        user = user_name()
        here, home = Path.cwd(), Path.home()
        places: dict[str, str] = {str(home): "~", str(home.resolve()): "~"}
        places |= {str(here): "<here>", str(here.resolve()): "<here>"}
        places |= {str(root.absolute()): ".", str(root.resolve()): "."}
        self._places = sorted(
            ((p, to) for p, to in places.items() if p.count("/") > 1 or (to == "~" and p != "/")),
            key=lambda one: -len(one[0]),
        )
        self.host(socket.gethostname())
        self._user = re.compile(rf"(?<=/){re.escape(user)}(?=/|$)")

    def host(self, name: str) -> str:
        """The name that a host is given."""
        return self._hosts.setdefault(name, f"host{len(self._hosts) + 1}") if name else name

    def text(self, text: str) -> str:
        """A text of any kind."""
        for place, to in self._places:
            text = re.sub(rf"{re.escape(place)}(?![\w-])", to, text)
        text = self._user.sub("user", masked(text))
        for name, alias in self._hosts.items():
            if len(name) > 2:
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", alias, text)
        self._note(text)
        return text

    def value(self, data: Any, key: str = "") -> Any:  # plain data of any depth
        """Plain data, such as an event of a journal."""
        if key in _IDENTIFIES:
            self._note(to_json(data).decode())
            return data
        if isinstance(data, Mapping):
            return {self.text(str(name)): self.value(one, str(name)) for name, one in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.value(one, key) for one in data]
        if not isinstance(data, str):
            return data
        if key in _HOSTS:
            return self.host(data)
        return ("(hidden)" if data else "") if key in _PEOPLE else self.text(data)

    def lines(self, text: bytes) -> bytes:
        """Lines of JSON; one that cannot be read stays out, as nobody knows what is in it."""
        found = [event_in(line) for line in text.splitlines() if line.strip()]
        whole = [event for event in found if event is not None]
        for event in whole:  # hosts first, so that texts before can have them replaced
            self._learn(event)
        return b"".join(to_json(self.value(without_secrets(event))) + b"\n" for event in whole)

    def json(self, text: bytes) -> bytes:
        """A file of JSON."""
        return to_json(self.value(without_secrets(from_json(text))), indent=2)

    def toml(self, text: bytes) -> bytes:
        """A file of TOML."""
        return tomli_w.dumps(self.value(without_secrets(tomllib.loads(text.decode())))).encode()

    def _learn(self, data: Any, key: str = "") -> None:
        if isinstance(data, Mapping):
            for name, one in data.items():
                self._learn(one, str(name))
        elif isinstance(data, list):
            for one in data:
                self._learn(one, key)
        elif isinstance(data, str) and key in _HOSTS:
            self.host(data)

    def _note(self, text: str) -> None:
        for found in _ABSOLUTE.findall(text):
            if len(self.left) < 1000:
                self.left[os.path.dirname(found)] = None  # noqa: PTH120  (a text, no file)
