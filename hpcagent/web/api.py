"""The API of the page: what the workspace says to any client, cleaned of what a page must not show."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hpcagent.campaign.loading import list_configs
from hpcagent.errors import BadInput, HpcAgentError, NotPermitted, NotThere
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.mcp.named import named
from hpcagent.mcp.said import clean, clean_piece
from hpcagent.model.base import read_toml
from hpcagent.model.contract import Contract
from hpcagent.model.schema import input_schema
from hpcagent.model.texts import as_name
from hpcagent.web.asked import Asked, CampaignAsked, Decision, Explain, Extension, Nothing, PackagedAsked, RunAsked
from hpcagent.web.chat import Answered, Chat, QuestionAsked
from hpcagent.web.feed import Feed, Message, units_of
from hpcagent.web.toolbox import AgentAsked, Assignment, ToolAsked, Toolbox, ToolDecision
from hpcagent.workspace.answers import campaign_toml
from hpcagent.workspace.client import Workspace

__all__ = ["routes"]

PING_S = 2.0
"""A stream says something at least so often: a page that hears nothing for longer begins anew."""
WAIT_S = 0.5
LINES = 60
LARGEST_FILE = 1 << 20
LARGEST_TEXT = 100_000
MOST_FILES = 500

A = TypeVar("A", bound=Asked)
Answers = Callable[..., Any]


def routes(workspace: Workspace, feed: Feed, chat: Chat) -> list[Route]:
    """Everything that a page asks for.

    Args:
        workspace: In the name of whom the page is for.
        feed: Of the same workspace.
        chat: Likewise.
    """
    api, tools = _Api(workspace, feed), Toolbox(workspace)

    def get(path: str, answer: Answers) -> Route:
        return Route(f"/api/{path}", partial(_answered, answer), methods=["GET"])

    def post(path: str, answer: Answers, kind: type[Asked]) -> Route:
        return Route(f"/api/{path}", partial(_posted, answer, kind), methods=["POST"])

    return [
        get("snapshot", api.snapshot),
        Route("/api/stream", api.stream, methods=["GET"]),
        get("run/{id}", api.run),
        get("run/{id}/files", api.files),
        get("run/{id}/file", api.file),
        get("run/{id}/text", api.text),
        get("campaign/{id}", api.campaign),
        get("campaign/{id}/runs", api.campaign_runs),
        get("campaign/{id}/run/{run}", api.campaign_run),
        get("campaign/{id}/run/{run}/files", api.files),
        get("answer/{handle}", api.answer),
        get("apps", api.apps),
        get("apps/{app}", api.app),
        get("configs", api.configs),
        get("jobs", api.jobs),
        get("tool/{name}", tools.tool),
        get("chat", chat.standing),
        get("chat/thread/{thread}", chat.thread),
        post("chat/ask", chat.ask, QuestionAsked),
        post("chat/turn/{turn}/stop", chat.stop, Nothing),
        post("chat/turn/{turn}/answer", chat.answer, Answered),
        post("chat/thread/{thread}/forget", chat.forget, Nothing),
        post("run", api.start_run, RunAsked),
        post("run/estimate", api.estimate_run, RunAsked),
        post("run/{id}/cancel", api.cancel, Nothing),
        post("campaigns", api.start_campaign, CampaignAsked),
        post("campaigns/estimate", api.estimate_campaign, CampaignAsked),
        post("configs", api.start_packaged, PackagedAsked),
        post("configs/estimate", api.estimate_packaged, PackagedAsked),
        post("campaign/{id}/stop", api.stop, Nothing),
        post("campaign/{id}/extend", api.extend, Extension),
        post("campaign/{id}/extend/estimate", api.estimate_extension, Extension),
        post("campaign/{id}/explain", api.explain, Explain),
        post("campaign/{id}/slices", api.slices, Nothing),
        post("campaign/{id}/report", api.report, Nothing),
        post("approval/{id}", api.decide, Decision),
        post("tools", tools.register, ToolAsked),
        post("tool/{name}/decide", tools.decide, ToolDecision),
        post("tool/{name}/remove", tools.remove, Nothing),
        post("agents", tools.add_agent, AgentAsked),
        post("agent/{name}/tools", tools.assign, Assignment),
        post("agent/{name}/remove", tools.remove_agent, Nothing),
    ]


async def _answered(answer: Answers, request: Request) -> Response:
    return await _said(partial(answer, {**request.path_params}, dict(request.query_params)))


async def _posted(answer: Answers, kind: type[A], request: Request) -> Response:
    try:
        asked = kind.model_validate_json(await request.body())
    except ValidationError as error:
        fields = {".".join(map(str, one["loc"])): one["msg"] for one in error.errors()}
        return JSONResponse({"error": "some of what was sent is wrong", "fields": clean(fields)}, 422)
    return await _said(partial(answer, {**request.path_params}, asked))


async def _said(answer: Callable[[], Any]) -> Response:
    """What the workspace answers, in a thread of its own; its errors with a status that says whose they are."""
    try:
        found = await anyio.to_thread.run_sync(answer)
    except NotAllowed as error:
        said = error.plain()
        fields = {said["field"]: said["why"] + _allowed(said)} if said.get("field") else {}
        status = {"contract": 422, "approval": 409}.get(error.check, 403)
        return JSONResponse(clean({"error": error.message, **said, "fields": fields}), status)
    except NotPermitted as error:
        return JSONResponse(clean({"error": error.message}), 403)
    except NotThere as error:
        return JSONResponse(clean({"error": error.message}), 404)
    except BadInput as error:
        return JSONResponse(clean({"error": error.message}), 400)
    except HpcAgentError as error:
        return JSONResponse(clean({"error": error.message}), 503)
    return JSONResponse(found)


def _allowed(said: Mapping[str, Any]) -> str:
    return f"; allowed: {said['allowed']}" if said.get("allowed") else ""


class _Api:
    """The answers: each is called with the address's parts and the query, or what was sent."""

    def __init__(self, workspace: Workspace, feed: Feed) -> None:
        self._ws, self._feed = workspace, feed

    # -- what there is ----------------------------------------------------------------------------

    def snapshot(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        found = self._feed.snapshot()
        return found | clean({"name": self._ws.about()["name"], "me": self._ws.whoami(), **self._ws.rules()})

    def run(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        found = self._ws.status(at["id"], lines=LINES)
        if found["kind"] == "run":
            counters = self._ws.counters(at["id"])
            names = ("node", "cpu_s", "cpu_use_percent", "max_rss_bytes", "cores_held", "jobs")
            found["counters"] = {name: counters[name] for name in names}
            found["param_units"] = units_of(found["app"]) or self._units_of_tool(found["app"], found["version"])
        return clean(found)

    def _units_of_tool(self, app: str, version: str) -> dict[str, str]:
        """Units of a registered tool's parameters; empty where that version is not here any more."""
        try:
            contract = Contract.model_validate(self._ws.describe(f"{app}@{version}"))
        except BadInput:
            return {}
        return {p.name: p.unit for p in contract.space.parameters}

    def files(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        found = self._ws.artifacts(at["id"], below=f"work/{at['run']}" if "run" in at else "")
        return clean({"files": found[:MOST_FILES], "more": max(0, len(found) - MOST_FILES)})

    def file(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        """A piece of a file in base64, as it is; `next` is the offset of the piece behind it, None at the end."""
        return self._ws.piece(at["id"], query.get("path", ""), offset=_offset(query), length=LARGEST_FILE)

    def text(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        """The first part of a file as a text without secrets; `text` is None where it is none."""
        found, data = clean_piece(self._ws, at["id"], query.get("path", ""), 0, LARGEST_TEXT)
        more = max(0, found["bytes"] - len(data))
        return clean({"text": as_text(data, cut=more > 0), "bytes": found["bytes"], "more": more})

    def campaign(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        return clean(self._ws.campaign(at["id"]))

    def campaign_runs(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        return _clean_columns(self._ws.campaign_runs(at["id"], query.get("after", "")))

    def campaign_run(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        return clean(self._ws.campaign_run(at["id"], at["run"], lines=LINES))

    def answer(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        return clean(self._ws.get_answer(at["handle"], timeout_s=WAIT_S))

    def apps(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        return clean({"apps": self._ws.apps()})

    def app(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        """What a form is made of: the schema of an app's inputs, and its metrics."""
        contract = Contract.model_validate(self._ws.describe(at["app"]))
        return clean(
            {
                "name": contract.name,
                "version": contract.version,
                "description": contract.description,
                "schema": input_schema(contract),
                "inputs": list(contract.inputs),
                "walltime_s": contract.resources.walltime_s,
                "varied": [p.name for p in contract.space.parameters if p.kind != "text" and p.low != p.high],
                "metrics": [
                    {"name": m.name, "unit": m.unit, "direction": m.direction, "description": m.description}
                    for m in contract.metrics
                ],
            }
        )

    def jobs(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        return clean({"jobs": self._ws.jobs()})

    # -- what is asked for ------------------------------------------------------------------------

    def start_run(self, at: Mapping[str, str], asked: RunAsked) -> Any:
        found = self._ws.run(
            named(asked.app, self._ws),
            asked.params,
            site=asked.site,
            seed=asked.seed,
            walltime_s=asked.walltime_s,
            why=asked.why,
            data_only=True,
        )
        return clean({name: found[name] for name in ("id", "state", "found", "note")})

    def estimate_run(self, at: Mapping[str, str], asked: RunAsked) -> Any:
        rest = {"seed": asked.seed, "walltime_s": asked.walltime_s, "data_only": True}
        return clean(self._ws.estimate(named(asked.app, self._ws), asked.params, site=asked.site, **rest))

    def cancel(self, at: Mapping[str, str], asked: Nothing) -> Any:
        found = self._ws.cancel(at["id"])
        return clean({"state": found["state"], "how": found.get("how", "")})

    def start_campaign(self, at: Mapping[str, str], asked: CampaignAsked) -> Any:
        text = _toml(asked, self._ws)
        found = self._ws.start(text, site=asked.site, why=asked.why, data_only=True, at_once=True)
        return {"id": found["id"], "state": found["state"], "found": found["found"]}

    def estimate_campaign(self, at: Mapping[str, str], asked: CampaignAsked) -> Any:
        return clean(self._ws.estimate_campaign(_toml(asked, self._ws), site=asked.site, data_only=True))

    def configs(self, at: Mapping[str, str], query: Mapping[str, str]) -> Any:
        """Campaigns that come with the library: what each finds out, and how far it goes."""
        found = []
        for name, path in list_configs().items():
            data = read_toml(path)
            until = data.get("until")
            limits = until if isinstance(until, dict) else {}
            row = {"name": name, "app": str(data.get("app", "")), "description": str(data.get("description", ""))}
            found.append(row | {one: limits.get(one) for one in ("max_runs", "node_hours")})
        return clean({"campaigns": found})

    def start_packaged(self, at: Mapping[str, str], asked: PackagedAsked) -> Any:
        name, changes = _packaged(asked), _limits(asked)
        found = self._ws.start(name, site=asked.site, why=asked.why, at_once=True, changes=changes, data_only=True)
        return {"id": found["id"], "state": found["state"], "found": found["found"]}

    def estimate_packaged(self, at: Mapping[str, str], asked: PackagedAsked) -> Any:
        name, changes = _packaged(asked), _limits(asked)
        return clean(self._ws.estimate_campaign(name, site=asked.site, changes=changes, data_only=True))

    def stop(self, at: Mapping[str, str], asked: Nothing) -> Any:
        return {"state": self._ws.stop(at["id"], at_once=True)["state"]}

    def extend(self, at: Mapping[str, str], asked: Extension) -> Any:
        found = self._ws.extend(at["id"], _limits(asked), why=asked.why, data_only=True, at_once=True)
        return {"id": found["id"], "state": found["state"]}

    def estimate_extension(self, at: Mapping[str, str], asked: Extension) -> Any:
        return clean(self._ws.estimate_extension(at["id"], _limits(asked), data_only=True))

    def explain(self, at: Mapping[str, str], asked: Explain) -> Any:
        return clean(self._ws.ask_later(at["id"], "explain", run=asked.run, timeout_s=WAIT_S))

    def slices(self, at: Mapping[str, str], asked: Nothing) -> Any:
        return clean(self._ws.ask_later(at["id"], "slices", timeout_s=WAIT_S))

    def report(self, at: Mapping[str, str], asked: Nothing) -> Any:
        return clean(self._ws.ask_later(at["id"], "report", timeout_s=WAIT_S))

    def decide(self, at: Mapping[str, str], asked: Decision) -> Any:
        decide = self._ws.grant if asked.grant else self._ws.deny
        done = decide(at["id"], asked.note)
        return clean({name: done[name] for name in ("id", "state", "words", "decided_by", "note")})

    # -- what happens -----------------------------------------------------------------------------

    async def stream(self, request: Request) -> Response:
        """Messages since the number of the query, without end; `reset` where the page has to begin anew."""
        after = request.query_params.get("after", "")
        return _Stream(self._messages(after))

    async def _messages(self, after: str) -> AsyncGenerator[str]:
        listening = self._feed.listen(after)
        if listening is None:
            yield RESET
            return
        listener, missed = listening
        try:
            yield ": begun\n\n"
            for one in missed:
                yield self._event(one)
            while True:
                try:
                    async with asyncio.timeout(PING_S):
                        message = await listener.queue.get()
                except TimeoutError:
                    yield ": here\n\n"
                    continue
                if message is None:
                    return
                if listener.late:
                    yield RESET
                    return
                yield self._event(message)
        finally:
            self._feed.leave(listener)

    def _event(self, message: Message) -> str:
        number, kind, data = message
        return f"id: {self._feed.boot}-{number}\nevent: {kind}\ndata: {data}\n\n"


RESET = "event: reset\ndata: {}\n\n"


class _Stream(StreamingResponse):
    """Ends its body with itself: of a page that has gone nobody listens on, before the first byte either."""

    def __init__(self, body: AsyncGenerator[str]) -> None:
        super().__init__(body, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._body.aclose()


def _clean_columns(found: Mapping[str, Any]) -> dict[str, Any]:
    """Columns are numbers for the most part: only texts are looked at."""
    runs = dict(found["runs"])
    for name in ("id", "state", "role", "failure"):
        known = {text: clean(text) for text in set(runs[name])}
        runs[name] = [known[text] for text in runs[name]]
    for table in ("params", "metrics", "uncertainty"):
        runs[table] = {
            clean(name): clean(values) if any(isinstance(v, str) for v in values) else values
            for name, values in runs[table].items()
        }
    rest: dict[str, Any] = clean({name: value for name, value in found.items() if name != "runs"})
    return rest | {"runs": runs}


def _offset(query: Mapping[str, str]) -> int:
    """Of the piece of a file that is asked for; 0 where nothing is said."""
    said = query.get("offset", "0")
    if not (said.isascii() and said.isdecimal() and len(said) <= 18):
        raise BadInput(f"offset={said[:40]!r} is no number of bytes.", value=said[:40])
    return int(said)


def as_text(data: bytes, *, cut: bool) -> str | None:
    """The text that bytes are in UTF-8; None where they are none. `cut`: a letter at their end may be a part.

    Example:
        >>> as_text("5 Å".encode()[:3], cut=True), as_text(b"Step 1", cut=False), as_text(b"\\x89PNG", cut=False)
        ('5 ', 'Step 1', None)
    """
    if b"\0" in data:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not cut)
    except UnicodeDecodeError:
        return None


def _limits(asked: Extension | PackagedAsked) -> dict[str, Any]:
    given = {"until.max_runs": asked.max_runs, "until.node_hours": asked.node_hours}
    return {name: value for name, value in given.items() if value is not None}


def _packaged(asked: PackagedAsked) -> str:
    """The name of a packaged campaign, and nothing else: no TOML comes in here."""
    if asked.campaign not in list_configs():
        raise NotAllowed(
            "contract",
            "there is no packaged campaign of that name",
            field="campaign",
            value=asked.campaign,
            allowed=", ".join(list_configs()),
            do="choose one of these",
        )
    return asked.campaign


def _toml(asked: CampaignAsked, workspace: Workspace) -> str:
    """The campaign of a form, as data."""
    objective: dict[str, Any] = {asked.direction: asked.metric}
    limits = {name: one.model_dump(exclude_none=True) for name, one in asked.limits.items()}
    if limits:
        objective["subject_to"] = limits
    app = named(asked.app, workspace)
    return campaign_toml(
        app,
        objective,
        search_space={name: one.model_dump(exclude_none=True) for name, one in asked.space.items()},
        constraints=(),
        fixed=asked.fixed,
        budget=asked.max_runs,
        node_hours=asked.node_hours,
        seed=asked.seed,
        name=as_name(f"optimize-{app}"),
    )
