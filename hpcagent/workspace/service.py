"""The one process that has a workspace: answers over a Unix socket of its owner's, one JSON line a request.

    {"do": "run", "args": {"app": "synthetic", "params": {"x": 0.3}}, "as": "", "key": "7c...", "at_most": 0.5}
    {"ok": {"id": "r-...", "state": "pending", ...}}
    {"error": {"kind": "NotAllowed", "message": "...", "refused": {...}}}

A request is in the journal before it is answered, and one that is sent again with its key has the first answer.
`at_most` (node-hours) may be left out; what would begin with a higher bound is refused.
What is asked of it it does by `Core`; here is no rule.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcagent.aside import Aside
from hpcagent.errors import BadInput, HpcAgentError, RunDirLocked
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.offered import import_no_paths
from hpcagent.shown import plain
from hpcagent.workspace.afterwards import AFTERWARDS
from hpcagent.workspace.calls import CHANGES, SERVED
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.sockets import Lines, Listening

__all__ = ["CALLS", "SERVED", "Service", "main", "serve_here"]

LONGEST_REQUEST = 80 << 20
LONGEST_WAIT_S = 600.0
LOOK_S = 1.0
MOST_CLIENTS = 1024
DEEPEST = 100
"""Tables and lists within each other, in the arguments of a call."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # that there may be one: pairs of them are whole characters
CALLS: dict[str, Callable[..., Any]] = {
    "run": Core.run,
    "estimate": Core.estimate,
    "status": Core.status,
    "list": Core.listed,
    "cancel": Core.cancel,
    "artifacts": Core.artifacts,
    "fetch": Core.fetch,
    "decide": Core.decide,
    "approvals": Core.approval_list,
    "costs": Core.costs,
    "apps": Core.apps,
    "wait": Core.wait,
    "simulation_run": Core.simulation_run,
    "simulation_get_results": Core.simulation_get_results,
    "bayesian_optimize": Core.bayesian_optimize,
    "answer": Core.answer,
    "recommend": Core.recommend,
    "tell": Core.tell,
    "modified": Core.modified,
    "subscribe": Core.subscribe,
    "unsubscribe": Core.unsubscribe,
    "notifications": Core.notifications,
    "acknowledge": Core.acknowledge,
    "whoami": Core.whoami,
    "start": Core.start,
    "stop": Core.stop,
    "extend": Core.extend,
    "invoke": Core.invoke,
    "invocation": Core.invocation,
    "expire": Core.expire,
    "campaign": Core.campaign,
    "ask_later": Core.ask_later,
    "get_answer": Core.get_answer,
    "estimate_campaign": Core.estimate_campaign,
    "estimate_extension": Core.estimate_extension,
    "estimate_repeat": Core.estimate_repeat,
    "repeat": Core.repeat,
    "catalyst": Core.catalyst,
    "estimate_catalyst": Core.estimate_catalyst,
    "catalyst_state": Core.catalyst_state,
    "rules": Core.rules_said,
    "counters": Core.counters,
    "changes": Core.changes,
    "campaign_runs": Core.campaign_runs,
    "campaign_run": Core.campaign_run,
    "jobs": Core.jobs,
    "describe": Core.describe,
    "register_tool": Core.register_tool,
    "packed_tool": Core.packed_tool,
    "list_tools": Core.list_tools,
    "get_tool": Core.get_tool,
    "decide_tool": Core.decide_tool,
    "remove_tool": Core.remove_tool,
    "add_app": Core.add_app,
    "remove_app": Core.remove_app,
    "assign_tool": Core.assign_tool,
    "add_agent": Core.add_agent,
    "remove_agent": Core.remove_agent,
    "accept_agent": Core.accept_agent,
    "list_agents": Core.list_agents,
}
"""What may be asked: each is called with the caller and the arguments of the request."""


class Service:
    """Serves a workspace until it is told to end, or has had nothing to do for long enough.

    Args:
        root: The workspace's folder.

    Raises:
        RunDirLocked: Another process serves it.
        BadInput: It is no workspace, or `workspace.toml` is wrong.
    """

    def __init__(self, root: Path) -> None:
        _many_descriptors()
        self.core = Core(root, apart=True)
        self._folder = Folder(root)
        self._ending = threading.Event()
        self._end_runs = False
        self._clients = 0
        self._turn = threading.Lock()
        self._listening = Listening(root, "service.sock", self._folder.service, most=MOST_CLIENTS)

    def serve(self) -> None:
        """Answer until `end` is called, or nothing was asked and nothing goes for `idle_s`."""
        idle_s = self.core.rules.idle_s
        last = time.monotonic()
        try:
            threading.Thread(target=self._look, name="look", daemon=True).start()
            while not self._ending.is_set():
                lines = self._listening.accept()
                if lines is not None:
                    last = time.monotonic()
                    threading.Thread(target=self._attend, args=(lines,), daemon=True).start()
                    continue
                self._listening.touch()
                if not self._folder.exists or not self._listening.found:
                    return  # nobody finds this process any more; another takes its place
                if self._clients or self.core.busy:
                    last = time.monotonic()
                if idle_s is not None and time.monotonic() - last > idle_s:
                    return
        finally:
            self.close()

    def _look(self) -> None:
        """See what has become of campaigns, triggers and late results, however many clients come."""
        while not self._ending.wait(LOOK_S):
            try:
                self.core.look()
            except Exception as error:  # the next look is made all the same
                print(f"{type(error).__name__}: {plain(str(error))}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Have `serve` return."""
        self._ending.set()
        self._listening.stop()

    def close(self) -> None:
        """Close the socket and the workspace; harmless when called twice."""
        self._listening.close()
        self.core.close(end=self._end_runs)

    def _attend(self, lines: Lines) -> None:
        """One client, request by request."""
        with self._turn:
            self._clients += 1
            crowded = self._clients > MOST_CLIENTS
        try:
            with contextlib.closing(lines):
                uid = lines.uid
                while line := lines.read(LONGEST_REQUEST):
                    with AFTERWARDS.answering():
                        if crowded:
                            answer = _error(BadInput(f"{MOST_CLIENTS} clients are connected; try again later."))
                        else:
                            answer = self.answer(line, uid)
                        lines.write(answer)
                    if crowded or len(line) == LONGEST_REQUEST:
                        return
        except (OSError, ValueError):
            return  # the client has gone
        finally:
            with self._turn:
                self._clients -= 1

    def answer(self, line: bytes, uid: int) -> dict[str, Any]:
        """The answer to a request of a user."""
        return _said_of(functools.partial(self._answer, line, uid))

    def _answer(self, line: bytes, uid: int) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            do, args, key = asked["do"], asked.get("args") or {}, asked.get("key")
            who = {name: str(asked.get(name) or "") for name in ("as", "client", "trace")}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput('a request is a line like {"do": "status", "args": {"identity": "r-..."}}.') from None
        _refuse_odd(line, args)
        if do == "about":
            return {"ok": self.core.about()}
        if do == "end":
            self._may_end(self.core.caller(uid, **_named(who)))
            self._end_runs = bool(args.get("runs"))
            AFTERWARDS.do(self.end)  # else the process may have ended before it has answered
            return {"ok": {}}
        call = CALLS.get(do)
        if call is None or not isinstance(args, dict):
            raise BadInput(f"there is no call {do!r}; calls: {', '.join(CALLS)}.", value=do)
        caller = self.core.caller(uid, **_named(who))
        at_most = _checked_bound(asked.get("at_most"))
        if key is None:
            return self._done(do, call, caller, args, at_most)
        if do not in CHANGES:
            with_key = ", ".join(name for name in CALLS if name in CHANGES)
            raise BadInput(f"{do} changes nothing and takes no key: leave it out. Calls with one: {with_key}.")
        work = functools.partial(self._done, do, call, caller, args, at_most)
        return self.core.answered.once(caller.name, key, do, args, functools.partial(_said_of, work))

    def _done(
        self,
        do: str,
        call: Callable[..., Any],
        caller: Caller,
        args: dict[str, Any],
        at_most: float | None,
    ) -> dict[str, Any]:
        takes = _signature(call)
        if "timeout_s" in takes.parameters:
            args["timeout_s"] = min(float(args.get("timeout_s", 0.0)), LONGEST_WAIT_S)
        try:
            takes.bind(self.core, caller, **args)
        except TypeError as error:
            raise BadInput(f"{do}: {plain(str(error))}.", value=sorted(args)) from None
        with self.core.gate.at_most(at_most):
            return {"ok": call(self.core, caller, **args)}

    def _may_end(self, caller: Caller) -> None:
        self.core.gate.require(caller, "manage")


_signature = functools.cache(inspect.signature)  # of `CALLS`


def _many_descriptors() -> None:
    """Allow as many open files as the system lets this process have: each client is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _named(who: dict[str, str]) -> dict[str, str]:
    return {"as_": who["as"], "client": plain(who["client"])[:200], "trace": plain(who["trace"])[:200]}


def _checked_bound(at_most: Any) -> float | None:
    """Node-hours that a request may begin; None: it names none.

    Raises:
        BadInput: They are no such number.
    """
    if at_most is None:
        return None
    if isinstance(at_most, bool) or not isinstance(at_most, int | float) or not 0 <= at_most < math.inf:
        raise BadInput("at_most is a number of node-hours, 0 or more.", value=at_most)
    return float(at_most)


def _refuse_odd(line: bytes, args: Any) -> None:
    """Refuse what no file and no journal can hold: half characters, and data that is nested without end.

    Raises:
        BadInput: There is some.
    """
    level, depth = [args] if isinstance(args, dict | list) else [], 0
    halves = _HALF.search(line) is not None
    while level:
        depth += 1
        if depth > DEEPEST:
            raise BadInput(f"the arguments are nested more than {DEEPEST} deep.")
        texts = [text for one in level if isinstance(one, dict) for text in one] if halves else []
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        for text in (*texts, *level) if halves else ():
            if isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text):
                raise BadInput("a text of the arguments has half a character in it (a lone surrogate).")
        level = [one for one in level if isinstance(one, dict | list)]


def _said_of(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """An answer, or the error in its place."""
    try:
        return work()
    except HpcAgentError as error:
        return _error(error)
    except Exception as error:  # the next request is answered all the same
        print(f"{type(error).__name__}: {plain(str(error))}", file=sys.stderr, flush=True)
        return _error(HpcAgentError(f"{type(error).__name__}: {plain(str(error))} (see service.log)."))


def _error(error: HpcAgentError) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": type(error).__name__, "message": error.message}
    if isinstance(error, NotAllowed):
        found["refused"] = error.plain()
    return {"error": found}


def serve_here(root: Path, begun: Callable[[], None]) -> None:
    """Serve a workspace until SIGTERM, Ctrl-C or SIGHUP; `begun` is called once clients can connect.

    Raises:
        RunDirLocked: Another process serves it.
        BadInput: It is no workspace, or `workspace.toml` is wrong.
    """
    import_no_paths()
    service = Service(root)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: service.end())
    Aside().set()
    begun()
    service.serve()


def main() -> None:
    """Serve the workspace that is named: `python -m hpcagent.workspace.service FOLDER`."""
    try:
        serve_here(Path(sys.argv[1]), lambda: None)
    except RunDirLocked as error:
        print(error, file=sys.stderr)
        sys.exit(SERVED)
    except HpcAgentError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
