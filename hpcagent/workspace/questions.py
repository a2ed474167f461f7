"""Questions about campaigns that take longer than a moment: each is answered by a process of its own.

`answers/HANDLE/asked.json` says what was asked, `answer.json` there what came of it. The handle is a digest of the
question and of the state of the campaign's journal: asked again while nothing has changed, it is the same one. The
process needs no service and no client to go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.elsewhere.detach import Spawned, spawned
from hpcagent.errors import BadInput, HpcAgentError, NotThere
from hpcagent.model.base import canonical_json, read_json
from hpcagent.store.files import make_folder, refusing_clearly, write_whole
from hpcagent.store.rundir import holder

__all__ = ["ANSWER", "ASKED", "COSTLY", "Question", "Questions"]

ASKED, ANSWER = "asked.json", "answer.json"
COSTLY = frozenset({"replay", "report"})
"""What takes minutes: they have a place of their own, so that nothing else waits for them."""
AT_ONCE = 2
"""Processes that answer at the same time, `COSTLY` aside; other questions wait."""
COSTLY_AT_ONCE = 1
"""Likewise of `COSTLY`, of all people together."""
MOST_OPEN = 20
"""Questions of one person that have no answer yet; of `answer` there is one for each campaign and counts not."""
MOST_COSTLY = 3
"""Likewise of `COSTLY`."""
TRIES = 2
"""A question whose process has ended so often without an answer has failed."""
KEPT_S = 7 * 86400.0
"""Answers are removed so long after they were last asked for."""
LOOK_S = 0.02

HANDLE = re.compile(r"j-[0-9a-f]{32}")


@dataclass(slots=True)
class Question:
    """One question.

    Attributes:
        handle: Its handle.
        what: `answer`, `explain`, `recommend`, `replay`, `report` or `slices`.
        campaign: The campaign's id.
        by: Who asked first.
        at: When: Unix time, in seconds.
        facts: What the asker knew then, and wants to know again with the answer.
        tries: How many processes were started for it.
        process: The last of them, if this process has started it.
    """

    handle: str
    what: str
    campaign: str
    by: str
    at: float
    facts: Mapping[str, Any]
    tries: int = 0
    process: Spawned | None = None


class Questions:
    """The questions of a workspace.

    Args:
        root: The workspace's folder.
        clock: Unix time, in seconds.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._root, self._folder, self._clock = root, root / "answers", clock
        self._turn = threading.RLock()
        self._known: dict[str, Question] = {}
        self._served: dict[tuple[str, bool], int] = {}  # person, `COSTLY` -> which start was their last
        self._open: dict[str, None] = {}  # handles without an answer, in the order in which they were asked
        for path in sorted(self._folder.glob(f"j-*/{ASKED}"), key=lambda p: p.stat().st_mtime):
            with contextlib.suppress(HpcAgentError, KeyError, TypeError):
                self._remember(path.parent.name, read_json(path))

    def _remember(self, handle: str, asked: Mapping[str, Any]) -> Question:
        names = ("what", "campaign", "by", "at", "facts")
        found = self._known[handle] = Question(handle, *(asked[name] for name in names))
        if not (self._folder / handle / ANSWER).exists():
            self._open[handle] = None
        return found

    @property
    def busy(self) -> int:
        """Questions without an answer."""
        with self._turn:
            return len(self._open)

    def ask(
        self,
        what: str,
        campaign: str,
        *,
        by: str,
        args: Mapping[str, Any],
        app: str,
        state: Any,
        facts: Mapping[str, Any] | None = None,
    ) -> str:
        """Have a question answered, unless it was; return its handle.

        Args:
            what: What is asked.
            campaign: The campaign's id.
            by: Who asks.
            args: Of the question.
            app: Reference of the campaign's app.
            state: Of the campaign's journal: with another one it is another question.
            facts: Kept with the question.

        Raises:
            BadInput: Too many questions of this person have no answer yet.
            StoreFull: It cannot be written.
        """
        # Not of the version of hpcagent: an answer is what was known when it was asked for.
        text = canonical_json([what, campaign, dict(args), state])
        handle = f"j-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        with self._turn:
            if handle not in self._known:
                self._refuse_many(what, by)
                asked: dict[str, Any] = {
                    "what": what,
                    "campaign": campaign,
                    "args": dict(args),
                    "app": app,
                    "by": by,
                }
                asked |= {"at": self._clock(), "facts": dict(facts or {})}
                with refusing_clearly(self._folder):
                    make_folder(self._folder / handle)
                write_whole(self._folder / handle / ASKED, json.dumps(asked) + "\n", private=True)
                self._remember(handle, asked)
            self.look()
        return handle

    def _refuse_many(self, what: str, by: str) -> None:
        mine = [h for h in self._open if self._known[h].by == by and self._known[h].what != "answer"]
        alike = [h for h in mine if self._known[h].what in COSTLY] if what in COSTLY else mine
        most = MOST_COSTLY if what in COSTLY else MOST_OPEN
        if what != "answer" and len(alike) >= most:
            kind = f" ({' or '.join(sorted(COSTLY))})" if what in COSTLY else ""
            raise BadInput(
                f"{len(alike)} questions{kind} of yours have no answer yet, {most} at most: wait for one of them "
                f"(get_answer {alike[0]}).",
                value=len(alike),
            )

    def question(self, handle: str) -> Question:
        """The question of a handle.

        Raises:
            BadInput: There is none.
        """
        with self._turn:
            found = self._known.get(handle) if HANDLE.fullmatch(handle) else None
        if found is None:
            raise NotThere(
                f"there is no answer {handle[:80]!r}: a handle is what a call has returned, and is kept for "
                f"{KEPT_S / 86400:g} days. Ask again.",
                value=handle[:80],
            )
        return found

    def read(self, handle: str, timeout_s: float = 0.0) -> dict[str, Any]:
        """`handle`, `what`, `campaign`, `state` (running, done, failed), `answer`, `error` where it has failed.

        Args:
            handle: The question's.
            timeout_s: Wait so long for an answer, in seconds.

        Raises:
            BadInput: There is no such question.
        """
        one = self.question(handle)
        found = {"handle": handle, "what": one.what, "campaign": one.campaign, "answer": None, "error": None}
        path = self._folder / handle / ANSWER
        until = time.monotonic() + timeout_s
        while True:
            self.look()
            if path.is_file():
                path.touch()  # it is still wanted
                said: dict[str, Any] = read_json(path)
                said.pop("took_s", None)
                return found | said
            if time.monotonic() >= until:
                return found | {"state": "running"}
            time.sleep(LOOK_S)

    def newest(self, what: str, campaign: str) -> tuple[Question | None, Question | None]:
        """Of one campaign the newest question of a kind that has an answer, and the newest that has none yet."""
        with self._turn:
            mine = [q for q in self._known.values() if (q.what, q.campaign) == (what, campaign)]
            done = [q for q in mine if q.handle not in self._open]
            still = [q for q in mine if q.handle in self._open]
        return (done[-1] if done else None), (still[-1] if still else None)

    def took_s(self, handle: str) -> float | None:
        """Processor time that an answer took, in seconds; None where that is not known."""
        try:
            took: object = read_json(self._folder / handle / ANSWER).get("took_s")
        except (HpcAgentError, AttributeError):
            return None
        return float(took) if isinstance(took, int | float) and math.isfinite(took) else None

    def look(self) -> None:
        """See which have an answer, and have the next ones answered: in turn among people, `answer` first."""
        with self._turn:
            going: list[Question] = []
            waiting: list[Question] = []
            for handle in list(self._open):
                if (self._folder / handle / ANSWER).exists():
                    del self._open[handle]
                else:
                    (going if self._goes(handle) else waiting).append(self._known[handle])
            for costly, most in ((False, AT_ONCE), (True, COSTLY_AT_ONCE)):
                goes = [one for one in going if (one.what in COSTLY) is costly]
                waits = [one for one in waiting if (one.what in COSTLY) is costly]
                while waits and len(goes) < most:
                    one = self._next(goes, waits)
                    waits.remove(one)
                    if self._start(one):
                        goes.append(one)
                        self._served[one.by, costly] = max(self._served.values(), default=0) + 1

    def _next(self, goes: Sequence[Question], waits: Sequence[Question]) -> Question:
        """Of those that wait: of whoever has the fewest going and was served longest ago, the oldest."""
        of_each = Counter(one.by for one in goes)
        return min(
            waits, key=lambda q: (of_each[q.by], self._served.get((q.by, q.what in COSTLY), 0), q.what != "answer")
        )

    def _goes(self, handle: str) -> bool:
        process = self._known[handle].process
        return (process is not None and process.code is None) or holder(self._folder / handle)[0]

    def _start(self, one: Question) -> bool:
        """Start a process for a question; whether one goes now."""
        folder = self._folder / one.handle
        if one.tries >= TRIES:
            code = None if one.process is None else one.process.code
            words = f"the process that was to answer has ended {one.tries} times without an answer (code {code})"
            said = {"state": "failed", "error": {"kind": "SiteFailed", "message": f"{words}; see its log."}}
            write_whole(folder / ANSWER, json.dumps(said) + "\n", private=True)
            del self._open[one.handle]
            return False
        one.tries += 1
        log = folder / "log.txt"
        one.process = spawned("hpcagent.workspace.answering", str(self._root), one.handle, log=log)
        return True

    def expire(self) -> list[str]:
        """Remove answers that were not asked for in `KEPT_S`; return their handles."""
        before = self._clock() - KEPT_S
        gone = []
        with self._turn:
            for handle in [h for h in self._known if h not in self._open]:
                folder = self._folder / handle
                with contextlib.suppress(FileNotFoundError):
                    if (folder / ANSWER).stat().st_mtime >= before:
                        continue
                shutil.rmtree(folder, ignore_errors=True)
                del self._known[handle]
                gone.append(handle)
        return gone
