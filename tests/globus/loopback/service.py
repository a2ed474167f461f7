"""A stand-in for the web service of Globus Compute: HTTP on loopback, tasks and results through a real broker.

It keeps what the real one keeps (functions, tasks, results, task groups), and answers as it does, errors included.
Credentials are never checked, but have to be there. Requests are counted; faults are given to it by `fail` and `slow`.
"""

from __future__ import annotations

import collections
import contextlib
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import pika
from globus_compute_common import messagepack

__all__ = ["LARGEST", "Fault", "Request", "Service", "Task", "Uep"]

LARGEST = 10 * 1024 * 1024  # bytes of a submission
RESULTS, HEARTBEATS, COMMANDS = "results", "heartbeats", "commands"
PREFIX = "group."
OWNER = "11111111-2222-4333-8444-555555555555"


class Uep(Protocol):
    """One process of an endpoint that takes tasks, of one user_endpoint_config."""

    queue: str


class Endpoint(Protocol):
    """What the service asks of an endpoint."""

    id: str
    name: str

    @property
    def online(self) -> bool:
        """What its status says."""
        ...

    def uep_for(self, options: dict[str, Any], runtime: dict[str, Any]) -> Uep:
        """The process for these options; started if there is none."""
        ...


# So long after its answer an endpoint may still have to tell the broker that it has taken a task.
UNTOLD_S = 5.0


@dataclass(frozen=True)
class Request:
    """A request that came."""

    method: str
    path: str
    at: float
    size: int
    status: int


@dataclass
class Task:
    """A task and what became of it.

    Attributes:
        results: How many came for it; more than one was repeated.
        again: Whether the broker may have given it to the endpoint twice: it was stopped while that had it, or just after.
    """

    id: str
    group: str
    endpoint: str
    queue: str
    at: float
    answer: dict[str, Any] | None = None
    results: int = 0
    forwarded: bool = False
    lost: bool = False
    body: bytes | None = field(default=None, repr=False)
    again: bool = False


@dataclass
class Fault:
    """What the next requests of a kind get instead of their answer, or before it."""

    method: str
    path: re.Pattern[str]
    status: int | None
    times: int
    after_s: float
    seen: int = 0


class Answer(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(status, code, reason)
        self.status, self.code, self.reason = status, code, reason


@dataclass
class Counts:
    """What went through."""

    submitted: int = 0
    results: int = 0
    forwarded: int = 0
    unknown: int = 0
    bytes_in: int = 0
    heartbeats: int = 0
    in_window: int = 0  # most requests within ten seconds
    largest: int = 0  # bytes of the largest submission
    batches: list[int] = field(default_factory=list)


class Service:
    """Start the service; `close` ends it.

    Args:
        broker_url: The broker's.
        limit: (requests, seconds): more in that time are answered with 429. None: counted only.

    Attributes:
        url: Where it listens.
        requests: All that came.
        counts: What went through.
    """

    def __init__(self, broker_url: str, *, limit: tuple[int, float] | None = None) -> None:
        self.broker_url, self.limit = broker_url, limit
        self.endpoints: dict[str, Endpoint] = {}
        self.functions: dict[str, dict[str, Any]] = {}
        self.tasks: dict[str, Task] = {}
        self.groups: dict[str, list[str]] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.counts = Counts()
        self.commands: list[dict[str, Any]] = []
        self.lock = threading.RLock()
        self._recent: collections.deque[float] = collections.deque()
        self._closing = threading.Event()
        self._broker = _Publisher(broker_url)
        self._broker.declare(RESULTS, HEARTBEATS)
        service = self

        class Handler(_Handler):
            of = service

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._threads = [
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._consume, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End it."""
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads:
            thread.join(10)
        self._broker.close()

    # Faults

    @contextlib.contextmanager
    def fail(
        self, status: int, path: str = "/submit$", *, method: str = "", times: int = 10**9
    ) -> Iterator[Fault]:
        """Answer the next `times` requests whose path matches with this status; yields what tells how many there were."""
        with self._fault(Fault(method, re.compile(path), status, times, 0.0)) as fault:
            yield fault

    @contextlib.contextmanager
    def slow(self, seconds: float, path: str = "", *, method: str = "", times: int = 10**9) -> Iterator[Fault]:
        """Answer requests whose path matches so much later."""
        with self._fault(Fault(method, re.compile(path), None, times, seconds)) as fault:
            yield fault

    @contextlib.contextmanager
    def _fault(self, fault: Fault) -> Iterator[Fault]:
        self.faults.append(fault)
        try:
            yield fault
        finally:
            self.faults.remove(fault)

    def count(self, method: str = "", path: str = "") -> int:
        """How many requests of this method came whose path matches."""
        return sum(r.method.startswith(method) and bool(re.search(path, r.path)) for r in list(self.requests))

    # What waits

    def unfinished(self, endpoint: str | None = None) -> list[Task]:
        """The tasks without a result."""
        with self.lock:
            return [t for t in self.tasks.values() if t.answer is None and endpoint in (None, t.endpoint)]

    def repeated(self) -> list[Task]:
        """The tasks with more than one result."""
        with self.lock:
            return [t for t in self.tasks.values() if t.results > 1 + t.again]

    def may_go_again(self) -> None:
        """The broker stops: what it was not told to be taken it gives out once more; the runs' lock and record count.

        An endpoint may have answered a task by then, and not yet told the broker that it has taken it: its log has
        `basic_ack` on a channel that is closed.
        """
        lately = time.time() - UNTOLD_S
        with self.lock:
            for task in self.tasks.values():
                task.again |= task.answer is None or float(task.answer["completion_t"]) > lately

    def forget(self) -> None:
        """Keep no task, and count from nothing; functions and endpoints stay."""
        with self.lock:
            self.tasks.clear()
            self.groups.clear()
            self.requests.clear()
            self.counts = Counts()
            self._recent.clear()

    def lose(self, endpoint: str | None = None) -> None:
        """Tasks that an endpoint took and that died with it: nobody answers them, here or in the real service.

        Those that wait in its queue are not lost. It must be down: what is in the queue then was taken by nobody.
        """
        with self.lock:
            open_ = self.unfinished(endpoint)
            queued = {task for queue in {task.queue for task in open_} for task in self._broker.queued(queue)}
            for task in open_:
                task.lost = task.id not in queued

    def waiting(self, queue: str) -> int:
        """Messages in a queue that nobody took."""
        return self._broker.waiting(queue)

    # HTTP

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any]:
        """The status and JSON for a request."""
        url = urlsplit(target)
        try:
            self._obey(method, url.path)
            status, found = 200, self._route(method, url.path, url.query, headers, body)
        except Answer as error:
            status = error.status
            found = {
                "status": "Failed",
                "code": error.code,
                "error_code": error.code,
                "reason": error.reason,
                "http_status_code": error.status,
                "error_args": [],
            }
        with self.lock:
            self.requests.append(Request(method, url.path, time.monotonic(), len(body), status))
            self.counts.bytes_in += len(body)
        return status, found

    def _obey(self, method: str, path: str) -> None:
        now = time.monotonic()
        with self.lock:
            self._recent.append(now)
            window = self.limit[1] if self.limit else 10.0
            while self._recent and self._recent[0] < now - window:
                self._recent.popleft()
            self.counts.in_window = max(self.counts.in_window, len(self._recent))
            if self.limit and len(self._recent) > self.limit[0]:
                raise Answer(429, "TOO_MANY_REQUESTS", "Too many requests")
            chosen = [
                f for f in self.faults if f.seen < f.times and method.startswith(f.method) and f.path.search(path)
            ]
            for fault in chosen:
                fault.seen += 1
        for fault in chosen:
            time.sleep(fault.after_s)
            if fault.status is not None:
                raise Answer(fault.status, "INJECTED", f"the rig answers {fault.status}")

    def _route(self, method: str, path: str, query: str, headers: Any, body: bytes) -> Any:
        if path == "/v2/oauth2/token":
            return self._tokens(parse_qs(body.decode()))
        if not headers.get("Authorization", "").startswith(("Bearer ", "Basic ")):
            raise Answer(401, "AUTHENTICATION_FAILED", "no token")
        if path == "/v2/oauth2/userinfo":
            return {"sub": OWNER, "identity_set": [{"sub": OWNER, "username": "rig@example.org"}]}
        if path == "/v2/version":
            return {"api": "1.0", "min_sdk_version": "2.0.0", "min_ep_version": "2.0.0"}
        if path == "/v2/get_amqp_result_connection_url":
            return {"queue_prefix": PREFIX, "connection_url": self.broker_url}
        if len(body) > LARGEST:
            raise Answer(413, "PAYLOAD_TOO_LARGE", f"{len(body)} bytes are more than {LARGEST}")
        data = json.loads(body) if body else {}
        for verb, pattern, handle in _ROUTES:
            found = re.fullmatch(pattern, path)
            if found and verb == method:
                return handle(self, *found.groups(), *([data] if verb in ("POST", "PUT") else []))
        raise Answer(404, "NOT_FOUND", f"{method} {path}")

    @staticmethod
    def _tokens(form: dict[str, list[str]]) -> dict[str, Any]:
        scopes = form.get("scope", [""])[0].split()
        servers = {"auth.globus.org": [], "funcx_service": []}
        for scope in scopes:
            own = scope.startswith(("openid", "email", "profile", "urn:globus:auth"))
            servers["auth.globus.org" if own else "funcx_service"].append(scope)
        tokens = [
            {
                "access_token": f"rig-{server}",
                "scope": " ".join(asked),
                "resource_server": server,
                "expires_in": 172800,
                "token_type": "bearer",
            }
            for server, asked in servers.items()
            if asked
        ]
        first, *others = tokens or [{"access_token": "rig", "scope": "", "resource_server": "funcx_service"}]
        return {**first, "other_tokens": others}

    def _register_function(self, data: dict[str, Any]) -> Any:
        found = str(uuid.uuid4())
        self.functions[found] = data
        return {"function_uuid": found}

    def _function(self, function: str) -> Any:
        if function not in self.functions:
            raise Answer(404, "FUNCTION_NOT_FOUND", f"Function {function} could not be resolved")
        return {"function_uuid": function, **self.functions[function]}

    def _the(self, endpoint: str) -> Endpoint:
        if endpoint not in self.endpoints:
            raise Answer(404, "ENDPOINT_NOT_FOUND", f"Endpoint {endpoint} could not be resolved")
        return self.endpoints[endpoint]

    def _status(self, endpoint: str) -> Any:
        online = self._the(endpoint).online
        return {"status": "online" if online else "offline", "details": {"active_managers": int(online)}}

    def _endpoint(self, endpoint: str) -> Any:
        found = self._the(endpoint)
        return {
            "uuid": found.id,
            "name": found.name,
            "display_name": found.name,
            "owner_id": OWNER,
            "multi_user": True,
        }

    def _submit(self, endpoint: str, data: dict[str, Any]) -> Any:
        target = self._the(endpoint)
        group = str(data.get("task_group_id") or uuid.uuid4())
        for function in data["tasks"]:
            self._function(function)
        uep = target.uep_for(data.get("user_endpoint_config") or {}, data.get("user_runtime") or {})
        headers: dict[str, Any] = {}
        if data.get("resource_specification"):
            headers["resource_specification"] = json.dumps(data["resource_specification"])
        if data.get("result_serializers"):
            headers["result_serializers"] = data["result_serializers"]
        ids: dict[str, list[str]] = {}
        messages, tasks = [], []
        for function, payloads in data["tasks"].items():
            ids[function] = []
            for payload in payloads:
                task = Task(str(uuid.uuid4()), group, endpoint, uep.queue, time.monotonic())
                body = self.functions[function]["function_code"]
                message = {"task_id": task.id, "container_id": None, "task_buffer": body + payload}
                own = {**headers, "function_uuid": function, "task_uuid": task.id}
                messages.append((b"\x01" + json.dumps({"message_type": "task", "data": message}).encode(), own))
                ids[function].append(task.id)
                tasks.append(task)
        with self.lock:
            # Known before it is sent: a quick result must find it.
            self.tasks.update({task.id: task for task in tasks})
            self.groups.setdefault(group, []).extend(task.id for task in tasks)
        try:
            if data.get("create_queue"):
                self._broker.declare(PREFIX + group)
            self._broker.publish(uep.queue, messages)
        except Exception as error:
            with self.lock:
                for task in tasks:
                    del self.tasks[task.id]
                    self.groups[group].remove(task.id)
            raise Answer(503, "SERVICE_UNAVAILABLE", f"broker: {type(error).__name__}") from None
        with self.lock:
            self.counts.submitted += len(tasks)
            self.counts.batches.append(len(tasks))
            self.counts.largest = max(self.counts.largest, sum(len(body) for body, _ in messages))
        return {"request_id": str(uuid.uuid4()), "task_group_id": group, "endpoint_id": endpoint, "tasks": ids}

    def _task(self, task: str) -> Any:
        if task not in self.tasks:
            raise Answer(404, "TASK_NOT_FOUND", f"Task {task} could not be found")
        return self.tasks[task].answer or {"task_id": task, "status": "pending", "details": {}}

    def _batch_status(self, data: dict[str, Any]) -> Any:
        return {"results": {t: self._task(t) for t in data["task_ids"] if t in self.tasks}}

    def _group(self, group: str) -> Any:
        if group not in self.groups:
            raise Answer(404, "TASK_GROUP_NOT_FOUND", f"Task group {group} could not be resolved")
        return {"taskgroup_id": group, "tasks": [{"id": t} for t in self.groups[group]]}

    # A Core Endpoint registers itself

    def _register_endpoint(self, data: dict[str, Any]) -> Any:
        return self._registered(str(data.get("endpoint_uuid") or uuid.uuid4()), data)

    def _registered(self, endpoint: str, data: dict[str, Any]) -> Any:
        queue = f"{endpoint}.{COMMANDS}"
        self._broker.declare(queue)
        self.commands.append({"endpoint": endpoint, "queue": queue, **data})
        return {"endpoint_id": endpoint, **self.credentials(endpoint, f"{endpoint}.tasks")}

    def send_command(self, queue: str, command: dict[str, Any]) -> None:
        """Tell a Core Endpoint something."""
        body = json.dumps({"globus_effective_identity": OWNER, "globus_identity_set": [{"sub": OWNER}], **command})
        properties = pika.BasicProperties(content_type="application/json", timestamp=int(time.time()))
        self._broker.publish_raw(queue, body.encode(), properties)

    def credentials(self, uep: str, queue: str) -> dict[str, Any]:
        """What the service gives an endpoint to talk to the broker."""
        self._broker.declare(queue)

        def out(exchange: str) -> dict[str, Any]:
            publish = {
                "exchange": exchange,
                "routing_key": f"{uep}.{exchange}",
                "mandatory": True,
                "properties": {"app_id": "rig", "content_type": "application/x-protobuf", "delivery_mode": 2},
            }
            return {
                "connection_url": self.broker_url,
                "exchange": exchange,
                "queue": exchange,
                "queue_publish_kwargs": publish,
            }

        return {
            "endpoint_id": uep,
            "task_queue_info": {"connection_url": self.broker_url, "exchange": "tasks", "queue": queue},
            "result_queue_info": out(RESULTS),
            "heartbeat_queue_info": out(HEARTBEATS),
            "command_queue_info": {"connection_url": self.broker_url, "queue": f"{uep}.{COMMANDS}"},
        }

    # Results and heartbeats

    def _consume(self) -> None:
        while not self._closing.is_set():
            try:
                with pika.BlockingConnection(_parameters(self.broker_url)) as connection:
                    channel = connection.channel()
                    channel.basic_qos(prefetch_count=100)
                    channel.basic_consume(RESULTS, lambda c, d, _, body: self._arrived(c, d, body))
                    channel.basic_consume(HEARTBEATS, lambda c, d, _, body: self._beat(c, d, body))
                    while not self._closing.is_set():
                        connection.process_data_events(0.1)
            except Exception:
                self._closing.wait(0.3)

    def _arrived(self, channel: Any, deliver: Any, body: bytes) -> None:
        found = messagepack.unpack(body)
        task = self.tasks.get(str(found.task_id))
        if task is None:
            self.counts.unknown += 1
        else:
            self.finish(
                task, found.data, error=found.is_error, details=found.details, body=body, again=deliver.redelivered
            )
        channel.basic_ack(deliver.delivery_tag)

    def finish(
        self,
        task: Task,
        data: str,
        *,
        error: bool,
        details: Any = None,
        body: bytes | None = None,
        again: bool = False,
    ) -> None:
        """Keep a task's result, and send it to who waits for it; `again`: the broker gives the same message once more."""
        with self.lock:
            self.counts.results += 1
            # An endpoint that lost the broker before it was confirmed sends the same message once more, to the byte.
            task.results += not (again or (body is not None and body == task.body))
            task.body = body
            if task.forwarded:
                return
            task.answer = task.answer or {
                "task_id": task.id,
                "status": "failed" if error else "success",
                "completion_t": str(time.time()),
                "exception" if error else "result": data,
                "details": details,
            }
        if body is None:
            failed = {"code": "RIG", "user_message": data}
            found = {"task_id": task.id, "data": data, "error_details": failed}
            body = b"\x01" + json.dumps({"message_type": "result", "data": found}).encode()
        properties = pika.BasicProperties(timestamp=int(time.time()), delivery_mode=2)
        self._broker.publish_raw(PREFIX + task.group, body, properties)
        task.forwarded = True
        self.counts.forwarded += 1

    def _beat(self, channel: Any, deliver: Any, body: bytes) -> None:
        found = messagepack.unpack(body)
        self.counts.heartbeats += 1
        said = found.global_state.get("error")
        if said:
            # It could not be started: what waits for it fails, with its words.
            queue = f"{found.endpoint_id}.tasks"
            self._broker.purge(queue)
            for task in self.unfinished():
                if task.queue == queue:
                    self.finish(task, str(said), error=True)
        channel.basic_ack(deliver.delivery_tag)


_ROUTES: list[tuple[str, str, Any]] = [
    ("POST", "/v[23]/functions", Service._register_function),
    ("GET", "/v2/functions/([^/]+)", Service._function),
    ("GET", "/v2/endpoints/([^/]+)/status", Service._status),
    ("GET", "/v2/endpoints/([^/]+)", Service._endpoint),
    ("POST", "/v3/endpoints/([^/]+)/submit", Service._submit),
    ("GET", "/v2/tasks/([^/]+)", Service._task),
    ("POST", "/v2/batch_status", Service._batch_status),
    ("GET", "/v2/taskgroup/([^/]+)", Service._group),
    ("POST", "/v3/endpoints", Service._register_endpoint),
    ("PUT", "/v3/endpoints/([^/]+)", Service._registered),
    ("POST", "/v3/endpoints/([^/]+)/lock", lambda *_: {}),
]


def _parameters(url: str) -> Any:
    found = pika.URLParameters(url)
    found.heartbeat = 0
    found.socket_timeout = 5
    return found


class _Publisher:
    """One connection to the broker, made again after it broke; from any thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.RLock()
        self._connection: Any = None
        self._channel: Any = None
        self._declared: set[str] = set()

    def _do(self, what: Any) -> Any:
        with self._lock:
            for again in (True, False):
                try:
                    if self._channel is None or not self._channel.is_open:
                        self._connection = pika.BlockingConnection(_parameters(self._url))
                        self._channel = self._connection.channel()
                    return what(self._channel)
                except Exception:
                    self._channel = None
                    with contextlib.suppress(Exception):
                        self._connection.close()
                    if not again:
                        raise
            return None

    def declare(self, *queues: str) -> None:
        for queue in queues:
            if queue in self._declared:
                continue

            def made(channel: Any, queue: str = queue) -> None:
                channel.queue_declare(queue, durable=True)
                if queue in (RESULTS, HEARTBEATS):
                    channel.exchange_declare(queue, "topic", durable=True)
                    channel.queue_bind(queue, queue, f"*.{queue}")

            self._do(made)
            self._declared.add(queue)

    def publish(self, queue: str, messages: list[tuple[bytes, dict[str, Any]]]) -> None:
        def sent(channel: Any) -> None:
            for body, headers in messages:
                channel.basic_publish("", queue, body, pika.BasicProperties(headers=headers, delivery_mode=2))
            channel.queue_declare(queue, passive=True)  # an answer: the broker has them

        self._do(sent)

    def publish_raw(self, queue: str, body: bytes, properties: Any) -> None:
        self._do(lambda channel: channel.basic_publish("", queue, body, properties))

    def waiting(self, queue: str) -> int:
        found: int = self._do(lambda channel: channel.queue_declare(queue, passive=True).method.message_count)
        return found

    def queued(self, queue: str) -> set[str]:
        """The tasks in a queue; they stay in it, in their order."""

        def looked(_: Any) -> set[str]:
            found = set()
            with pika.BlockingConnection(_parameters(self._url)) as connection:
                channel = connection.channel()
                while (message := channel.basic_get(queue))[0] is not None:
                    found.add(str(message[1].headers["task_uuid"]))
                return found  # none was acknowledged: with the connection they return

        return set(self._do(looked))

    def purge(self, queue: str) -> None:
        self._do(lambda channel: channel.queue_purge(queue))

    def close(self) -> None:
        with self._lock, contextlib.suppress(Exception):
            if self._connection is not None:
                self._connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: Service

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            status, found = self.of.answer(self.command, self.path, self.headers, body)
        except Exception as error:
            status, found = 500, {"code": "RIG", "reason": f"{type(error).__name__}: {error}"}
        text = json.dumps(found).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(120)
        # One write for the head, one for the body: without this the second waits 40 ms.
        import socket

        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
