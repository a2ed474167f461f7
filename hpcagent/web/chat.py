"""Conversations with the supervisor, on the page: each turn goes on in a thread of its own, whoever looks at it.

What goes on is a part of the feed, `chat`: so a page that was away sees how it went. Nothing here imports the
packages of models before somebody asks a question.
"""

from __future__ import annotations

import importlib.util
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from hpcagent.errors import BadInput, Busy, HpcAgentError, NotThere
from hpcagent.gate.request import charged_of
from hpcagent.mcp.said import clean, clean_text, to_approve
from hpcagent.web.asked import Asked
from hpcagent.web.feed import Feed
from hpcagent.workspace.client import Workspace

if TYPE_CHECKING:
    from hpcagent.agents.approving import Question
    from hpcagent.agents.supervisor import Supervisor
    from hpcagent.agents.turn import Event

__all__ = ["Answered", "Chat", "QuestionAsked"]

PACKAGE = "pydantic_ai"
NOT_INSTALLED = "The chat needs packages: pip install 'hpcagent[agents]', then start `hpcagent web` again."
NO_MODEL = (
    "The chat needs a language model: set HPCAGENT_MODEL (and HPCAGENT_MODEL_URL for a server of your own), then "
    "start `hpcagent web` again; docs/howto/models.md says how."
)
MOST_AT_ONCE = 3
"""Turns of a page that go on at the same time."""
KEPT_ENDED = 5
MOST_STEPS = 200
LOOK_S = 1.0
LONGEST_GOAL = 20_000
LONGEST_STEP = 500
DECIDED = {"granted": True, "used": True, "denied": False}
"""What a state of an approval says to a question; another one, as `expired`, says nothing."""
ASKED_FOR_S = 86_400.0
"""A question that nobody answers for so long is left as it is; the approval stays."""


class QuestionAsked(Asked):
    """A question to the supervisor."""

    goal: str = Field(min_length=1, max_length=LONGEST_GOAL)
    thread: str = Field(default="", max_length=80)
    node_hours: float | None = Field(default=None, ge=0)


class Answered(Asked):
    """A person's yes or no to a question of a specialist."""

    question: str = Field(max_length=40)
    yes: bool


class _Turn:
    """A turn that goes on, or has ended not long ago."""

    def __init__(self, thread: str, goal: str) -> None:
        self.id, self.thread, self.goal = f"u-{secrets.token_hex(8)}", thread, goal
        self.began_at = time.time()
        self.state = "going"
        self.error = ""
        self.steps: deque[dict[str, Any]] = deque(maxlen=MOST_STEPS)
        self.question: dict[str, Any] | None = None
        self.said: bool | None = None
        self.answered = threading.Event()
        self.stopping = False
        self.boss: Supervisor | None = None

    def plain(self) -> dict[str, Any]:
        names = ("id", "thread", "goal", "began_at", "state", "error", "question", "stopping")
        return {name: getattr(self, name) for name in names} | {"steps": [dict(one) for one in self.steps]}

    def take(self, event: Event) -> None:
        """What goes on, as a line: what began stays one line until it has ended."""
        said = clean_text(event.text, LONGEST_STEP)
        about = {"agent": clean_text(event.agent, 100), "tool": clean_text(event.tool, 100)}
        if event.kind in ("called", "refused"):
            for one in self.steps:
                if one["kind"] == "calling" and (one["agent"], one["tool"]) == (about["agent"], about["tool"]):
                    one |= {"kind": event.kind, "runs": list(event.runs), "ended_at": time.time()}
                    one["why"] = said
                    return
        step = {"kind": event.kind, **about, "text": said, "runs": list(event.runs), "at": time.time(), "why": ""}
        self.steps.append(step)


class Chat:
    """Conversations of whoever the page is for.

    Args:
        workspace: In the name of whom the page is for.
        feed: Is told what goes on, whenever it has changed.
        model: A model of pydantic-ai, in place of that of the environment.
    """

    def __init__(self, workspace: Workspace, feed: Feed, *, model: Any = "") -> None:
        self._ws, self._feed, self._model = workspace, feed, model
        self._telling = threading.Lock()
        self._turn = threading.Condition()
        self._turns: list[_Turn] = []
        self._closed = False

    # -- what there is ----------------------------------------------------------------------------

    def standing(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        """Whether questions can be asked, of whom; and the conversations."""
        from hpcagent.agents.threads import KEEP_DAYS

        why, to = self._ready()
        threads = [one | {"goal": one["goal"][:200]} for one in self._threads().list()[:200]]
        return clean({"ready": not why, "why": why, "to": to, "threads": threads, "keep_days": KEEP_DAYS})

    def _ready(self) -> tuple[str, str]:
        """Why nothing can be asked, and whom it would go to."""
        from hpcagent.agents.models import MODEL, URL, chosen

        if importlib.util.find_spec(PACKAGE) is None or importlib.util.find_spec("mcp") is None:
            return NOT_INSTALLED, ""
        if not isinstance(self._model, str):
            return "", str(self._model.model_name)
        try:
            return "", chosen(self._model).where
        except BadInput as error:
            import os

            return (error.message if os.environ.get(MODEL) or os.environ.get(URL) else NO_MODEL), ""

    def _threads(self) -> Any:
        from hpcagent.agents.threads import Threads

        return Threads(self._ws.folder.root, str(self._ws.whoami()["name"]))

    def thread(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        """The turns of a conversation, the oldest first, each with its answer on record."""
        turns = self._threads().turns(at["thread"])
        return clean({"turns": [{"n": t.n, "at": t.at, "goal": t.goal, "reply": t.reply} for t in turns[-100:]]})

    # -- what is asked for ------------------------------------------------------------------------

    def ask(self, at: Mapping[str, str], asked: QuestionAsked) -> Any:
        """Begin a turn; what becomes of it is told."""
        why, _ = self._ready()
        if why:
            raise BadInput(why)
        goal = asked.goal.strip()
        if not goal:
            raise BadInput("the question is empty: write what you want to know, or have done.")
        threads = self._threads()
        name = asked.thread or threads.new()
        threads.turns(name)  # a name that is none, or somebody else's, is refused here
        with self._turn:
            going = [one for one in self._turns if one.state == "going"]
            if self._closed:
                raise Busy("the page's server ends.")
            if any(one.thread == name for one in going):
                raise Busy("this conversation has a question that is not answered yet; wait for it, or stop it.")
            if len(going) >= MOST_AT_ONCE:
                raise Busy(f"{MOST_AT_ONCE} questions are being answered; wait for one, or stop one.")
            turn = _Turn(name, goal)
            ended = [one for one in self._turns if one.state != "going"]
            self._turns = [*ended[-KEPT_ENDED:], *going, turn]
        threading.Thread(target=self._go, args=(turn, asked.node_hours), name="web chat", daemon=True).start()
        self._tell()
        return {"thread": name, "turn": turn.id}

    def stop(self, at: Mapping[str, str], asked: Asked) -> Any:
        """Stop a turn; runs that it has started go on."""
        turn = self._find(at["turn"])
        self._stop(turn)
        self._tell(turn)
        return {"state": turn.state}

    def answer(self, at: Mapping[str, str], asked: Answered) -> Any:
        """A person's yes or no, to the question that was shown."""
        turn = self._find(at["turn"])
        with self._turn:
            if turn.question is None or turn.question["id"] != asked.question:
                raise NotThere("there is no such question any more: it was answered, or the turn has ended.")
            turn.said, turn.question = asked.yes, None
            turn.answered.set()
        self._tell(turn)
        return {"said": asked.yes}

    def forget(self, at: Mapping[str, str], asked: Asked) -> Any:
        """Remove a conversation; its runs stay."""
        with self._turn:
            if any(one.thread == at["thread"] and one.state == "going" for one in self._turns):
                raise Busy("a question of this conversation is being answered; stop it first.")
            self._turns = [one for one in self._turns if one.thread != at["thread"]]
        removed = self._threads().forget(at["thread"])
        self._tell()
        return {"turns": removed}

    def close(self) -> None:
        """Stop all turns."""
        with self._turn:
            self._closed = True
            going = [one for one in self._turns if one.state == "going"]
        for one in going:
            self._stop(one)

    # -- a turn -----------------------------------------------------------------------------------

    def _find(self, identity: str) -> _Turn:
        with self._turn:
            for one in self._turns:
                if one.id == identity:
                    return one
        raise NotThere("there is no such turn any more.")

    def _stop(self, turn: _Turn) -> None:
        with self._turn:
            turn.stopping = turn.state == "going"
            turn.answered.set()
            boss = turn.boss
        if boss is not None:
            boss.stop(turn.thread)

    def _tell(self, turn: _Turn | None = None) -> None:
        """Have a turn told as it is; without one all, as when one was forgotten. The newest is told last."""
        with self._telling:
            with self._turn:
                there = [one.plain() for one in self._turns if turn is None or one is turn]
            if turn is None:
                self._feed.tell("chat", there)
            elif there:
                self._feed.tell_turn(there[0])

    def _go(self, turn: _Turn, node_hours: float | None) -> None:
        try:
            state, error = self._done(turn, node_hours), ""
        except HpcAgentError as failed:
            state, error = "failed", failed.message
        except Exception as failed:  # the page says it; the server goes on
            state, error = "failed", f"{type(failed).__name__}: {failed}"
        with self._turn:
            turn.state, turn.error, turn.question, turn.stopping = state, clean_text(error, 2000), None, False
            turn.boss = None
        self._ws.close()  # this thread's connection
        self._tell(turn)

    def _done(self, turn: _Turn, node_hours: float | None) -> str:
        try:
            from hpcagent.agents.supervisor import Limits, Supervisor
        except ImportError as error:
            raise BadInput(f"{NOT_INSTALLED} ({error.name} is missing)") from None

        def told(event: Event) -> None:
            with self._turn:
                if turn.state == "going":
                    turn.take(event)
            self._tell(turn)

        boss = Supervisor(
            self._ws,
            model=self._model,
            limits=Limits(node_hours=node_hours),
            ask=lambda question: self._ask_person(turn, question),
            told=told,
        )
        with self._turn:
            turn.boss = boss
        reply = boss.ask(turn.goal, thread=turn.thread, stopped=lambda: turn.stopping)
        return reply.state

    def _ask_person(self, turn: _Turn, question: Question) -> bool | None:
        """Put a question onto the page, and wait for a yes or no there, or of whoever decides it elsewhere."""
        asked = self._asked(question.approval)
        params = asked.pop("params", None) or {"parameters": question.params}
        with self._turn:
            if turn.stopping or turn.state != "going":
                return None
            turn.said = None
            turn.answered.clear()
            turn.question = {
                "id": secrets.token_hex(8),
                "approval": question.approval,
                "words": question.words,
                "params": params,
                "agent": question.agent,
                "says": question.says,
                "asked": asked,
            }
        self._tell(turn)
        until = time.monotonic() + ASKED_FOR_S
        state = "pending"
        while state == "pending" and not turn.answered.wait(LOOK_S) and time.monotonic() < until:
            state = self._state(question.approval)
        with self._turn:
            turn.question = None
            said = turn.said if state == "pending" else DECIDED.get(state)
        self._tell(turn)
        return said

    def _asked(self, approval: str) -> dict[str, Any]:
        """What would run, and its cost, as the approvals have it."""
        if not approval:
            return {}
        pending = self._ws.approvals(pending=True)
        found: dict[str, Any] = next((one for one in pending if one["id"] == approval), {})
        request = found.get("request") or {}
        names = ("app", "site", "nodes", "node_hours", "expected_node_hours", "usd", "runs")
        shown: dict[str, Any] = clean(
            {name: request.get(name) for name in names} | {"node_hours": charged_of(request)}
        )
        return shown | ({"params": to_approve(found["params"])} if found else {})

    def _state(self, approval: str) -> str:
        """What has become of it elsewhere, as under Approvals."""
        if not approval:
            return "pending"
        return next((str(one["state"]) for one in self._ws.approvals() if one["id"] == approval), "pending")
