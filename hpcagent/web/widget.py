"""The page in a cell of a notebook: no server, no port and no token; its messages go through the kernel."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from hpcagent.errors import BadInput
from hpcagent.web.bridge import Bridge
from hpcagent.web.server import KINDS, STATIC, page_app
from hpcagent.workspace.client import Workspace

__all__ = ["Page"]

LEAST, MOST = 200, 4000


class Page(anywidget.AnyWidget):
    """The page of a workspace as the value of a cell.

    It does what `hpcagent web` does, in the name of whoever has the kernel. While a cell runs, what happens is
    still shown, and what is clicked waits.

    Args:
        workspace: Its folder; by default as `ha.Workspace` finds one.
        as_: Somebody of `workspace.toml` to speak for.
        model: Of the chat: `PROVIDER:MODEL`, or a model of pydantic-ai; by default as the environment says.
        height: In pixels.

    Attributes:
        root: The workspace's folder.

    Raises:
        BadInput: There is no such workspace, or the height is none.
        HpcAgentError: The workspace does not answer.

    Example:
        >>> page = Page("group")  # doctest: +SKIP
        >>> page.height = 900     # doctest: +SKIP
        >>> page.end()            # doctest: +SKIP
    """

    _esm = STATIC / "widget.js"
    height = traitlets.Int(700).tag(sync=True)

    def __init__(
        self, workspace: str | Path | None = None, *, as_: str = "", model: Any = "", height: int = 700
    ) -> None:
        if not LEAST <= height <= MOST:
            raise BadInput(f"height = {height}: a page is {LEAST} to {MOST} pixels high.", value=height)
        there = Workspace(workspace, as_=as_, client="hpcagent in a notebook")
        token = secrets.token_urlsafe(32)  # nobody else sends messages to this object
        told, taken = weakref.WeakMethod(self._told), weakref.WeakMethod(self._heard)

        def tell(message: dict[str, Any]) -> None:
            if (say := told()) is not None:
                say(message)

        def take(_: Any, message: Any, buffers: Any) -> None:
            if (hear := taken()) is not None:
                hear(message)

        bridge: Bridge | None = None
        try:
            there.whoami()  # what keeps the workspace from answering is said here
            bridge = Bridge(page_app(there, token, model=model), token, tell)
            super().__init__(height=height)
        except BaseException:
            _end(bridge, there)
            raise
        self.root, self._bridge = there.folder.root, bridge
        self._ends = weakref.finalize(self, _end, bridge, there)
        self.on_msg(take)

    def end(self) -> None:
        """Answer no more; runs go on."""
        self._ends()

    def close(self) -> None:
        """End it, and take it out of the notebook."""
        if hasattr(self, "_ends"):
            self.end()
        super().close()

    def _told(self, message: dict[str, Any]) -> None:
        self.send(message)

    def _heard(self, message: Any) -> None:
        if not isinstance(message, Mapping):
            return
        if isinstance(message.get("files"), str):
            files = {one.name: one.read_text(encoding="utf-8") for one in STATIC.iterdir() if one.suffix in KINDS}
            self.send({"to": message["files"], "n": 0, "files": files})
        else:
            self._bridge.heard(message)


def _end(bridge: Bridge | None, workspace: Workspace) -> None:
    if bridge is not None:
        bridge.close()
    workspace.close(everywhere=True)
