"""The link, with the web service and the broker of Globus Compute played: what it sends, and what it survives."""

from __future__ import annotations

import base64
import json
import logging
import queue
import re
import threading
import time
import traceback
import uuid
from types import SimpleNamespace

import pytest

from hpcagent.errors import AppFailed, SiteFailed
from hpcagent.sites.endpoint import link as link_module
from hpcagent.sites.endpoint import sdk, under_way
from hpcagent.sites.endpoint.link import Link
from hpcagent.sites.endpoint.sdk import Pace, Service

pytest.importorskip("globus_compute_sdk")
responses = pytest.importorskip("responses")
requests = pytest.importorskip("requests")
pika = pytest.importorskip("pika")
messagepack = pytest.importorskip("globus_compute_common.messagepack")
Result = pytest.importorskip("globus_compute_common.messagepack.message_types").Result

SECRET = "canary-5f1d0c"
PASSWORD = "broker-canary-77"
ENDPOINT = "4b116d3c-1703-4f8f-9f6f-39921e5864df"
API = "https://compute.api.globus.org"
JSON_DATA = "11\n"


class Connection:
    """A pika.BlockingConnection as far as the listener goes."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.events = queue.Queue()
        self.consumers = {}
        cloud.connection = self

    def channel(self):
        return Channel(self)

    def add_callback_threadsafe(self, callback):
        self.events.put(callback)

    def process_data_events(self, time_limit):
        try:
            event = self.events.get(timeout=time_limit)
        except queue.Empty:
            return
        if isinstance(event, Exception):
            raise event
        event()

    def close(self):
        if self.cloud.connection is self:
            self.cloud.connection = None


class Channel:
    def __init__(self, connection):
        self.connection = connection
        self.is_open = True

    def basic_qos(self, **_):
        pass

    def add_on_cancel_callback(self, _):
        pass

    def basic_ack(self, tag):
        self.connection.cloud.acknowledged.append(tag)

    def basic_nack(self, tag, requeue):
        self.connection.cloud.thrown_away.append(tag)

    def basic_consume(self, name, callback):
        if name in self.connection.cloud.no_queue:
            self.is_open = False
            raise pika.exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no queue")
        self.connection.consumers[name] = (self, callback)
        for body in self.connection.cloud.kept.pop(name, []):
            self.connection.cloud.send(name, body)


class Cloud:
    """The service: takes tasks; gives answers when told to, or at once."""

    def __init__(self):
        self.submissions = []
        self.registered = []
        self.asked = []
        self.tasks = {}  # id -> (group, request)
        self.results = {}
        self.kept = {}
        self.acknowledged = []
        self.thrown_away = []
        self.no_queue = set()
        self.connection = None
        self.refuses = None  # request -> (status, body) or an exception, or None
        self.refused_groups = set()
        self.at_once = True
        self.status = {"status": "online"}
        self.statuses = 0
        self.connections = 0
        self.broker_down = False

    def play(self, mock):
        def on(method, path, what):
            mock.add_callback(method, re.compile(re.escape(API) + path), callback=what)

        mock.add_callback("POST", "https://auth.globus.org/v2/oauth2/token", callback=self.token)
        on("POST", r"/v3/functions$", self.register)
        on("POST", r"/v3/endpoints/[^/]+/submit$", self.submit)
        on("POST", r"/v2/batch_status$", self.batch_status)
        on("GET", r"/v2/taskgroup/.*", self.group)
        on("GET", r"/v2/endpoints/[^/]+/status$", self.told_status)
        url = f"amqps://user:{PASSWORD}@mq.example.org:5671/%2f"
        on(
            "GET",
            r"/v2/get_amqp_result_connection_url$",
            lambda _: answer({"queue_prefix": "q.", "connection_url": url}),
        )

    @staticmethod
    def token(_):
        tokens = {
            "access_token": "at-canary",
            "scope": "https://auth.globus.org/scopes/facd7ccc-c5f4-42aa-916b-a0e270e2c2a9/all",
            "resource_server": "funcx_service",
            "expires_in": 172800,
            "token_type": "Bearer",
            "other_tokens": [],
        }
        return answer(tokens)

    def register(self, request):
        self.registered.append(json.loads(request.body))
        return answer({"function_uuid": str(uuid.uuid4())})

    def submit(self, request):
        body = json.loads(request.body)
        body["size"] = len(request.body)
        body["endpoint"] = request.url.split("/")[-2]
        (payloads,) = body["tasks"].values()
        asked = [unpacked(payload) for payload in payloads]
        verdict = self.refuses(asked, body) if self.refuses else None
        taken = isinstance(verdict, Exception) and getattr(verdict, "taken", False)
        if verdict is None or taken:
            self.submissions.append((asked, body))
            group = body.get("task_group_id") or str(uuid.uuid4())
            ids = [str(uuid.uuid4()) for _ in asked]
            for task, one in zip(ids, asked, strict=True):
                self.tasks[task] = (group, one)
                if self.at_once:
                    self.finish(task, {"key": one["key"], "number": one.get("number")})
        if isinstance(verdict, Exception):
            raise verdict
        if verdict is not None:
            return answer(verdict[1], verdict[0])
        found = {"task_group_id": group, "request_id": str(uuid.uuid4()), "endpoint_id": ENDPOINT}
        return answer(found | {"tasks": dict.fromkeys(body["tasks"], ids)})

    def batch_status(self, request):
        asked = json.loads(request.body)["task_ids"]
        self.asked.append(asked)
        pending = {"status": "pending", "details": {}}
        return answer({"results": {task: self.results.get(task, pending) for task in asked}})

    def group(self, request):
        name = request.url.split("/")[-1]
        if name in self.refused_groups:
            return answer({"code": "TASK_GROUP_NOT_FOUND", "reason": "no such group"}, 404)
        return answer(
            {"taskgroup_id": name, "tasks": [{"id": t} for t, (group, _) in self.tasks.items() if group == name]}
        )

    def told_status(self, _):
        self.statuses += 1
        if isinstance(self.status, Exception):
            raise self.status
        return answer(self.status)

    # the broker

    def connect(self, parameters):
        self.connections += 1
        if self.broker_down:
            raise pika.exceptions.AMQPConnectionError(f"amqps://user:{PASSWORD}@mq.example.org")
        return Connection(self)

    def finish(self, task, gives, *, error=False, raw=False, unheard=False):
        data = gives if raw or error else JSON_DATA + json.dumps(gives)
        state = {"status": "failed", "exception": data} if error else {"status": "success", "result": data}
        self.results[task] = {"task_id": task, "completion_t": "1", **state}
        if unheard:
            return
        details = {"code": "x", "user_message": "x"} if error else None
        self.send(
            f"q.{self.tasks[task][0]}", messagepack.pack(Result(task_id=task, data=data, error_details=details))
        )

    def send(self, name, body, headers=None):
        connection = self.connection
        if connection is None or name not in connection.consumers:
            self.kept.setdefault(name, []).append(body)
            return
        channel, callback = connection.consumers[name]
        deliver = SimpleNamespace(delivery_tag=len(self.acknowledged))
        properties = SimpleNamespace(headers=headers)
        connection.events.put(lambda: callback(channel, deliver, properties, body))


def answer(body, status=200):
    return status, {"Content-Type": "application/json"}, json.dumps(body)


def unpacked(payload):
    size, rest = payload.split("\n", 1)
    arguments = rest[: int(size)]
    assert arguments.startswith(JSON_DATA)
    (request,) = json.loads(arguments[3:])
    return request


def profile(**fields):
    return SimpleNamespace(
        endpoint_id=ENDPOINT,
        user_endpoint_config={"account": "m1234"},
        executors={"workers": SimpleNamespace(user_endpoint_config={})},
        control=SimpleNamespace(endpoint_id="", user_endpoint_config=None),
        amqp_port=fields.get("amqp_port"),
    )


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOBUS_COMPUTE_CLIENT_ID", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee")
    monkeypatch.setenv("GLOBUS_COMPUTE_CLIENT_SECRET", SECRET)
    monkeypatch.setenv("GLOBUS_COMPUTE_USER_DIR", str(tmp_path / "globus"))
    monkeypatch.setattr(link_module, "_pause", lambda _: 0.02)
    monkeypatch.setattr(sdk, "_RETRIES", 0)
    monkeypatch.setattr(sdk, "_FUNCTIONS", {})
    monkeypatch.setattr(under_way, "_DEAF_S", 0.05)
    monkeypatch.setattr(under_way, "_YOUNG_S", 0.0)
    monkeypatch.setattr("hpcagent.sites.endpoint.listening._LONGEST_PAUSE_S", 0.05)
    played = Cloud()
    monkeypatch.setattr(pika, "BlockingConnection", played.connect)
    with responses.RequestsMock(assert_all_requests_are_fired=False) as mock:
        played.play(mock)
        yield played


@pytest.fixture
def made(cloud):
    links = []

    def make(**more):
        links.append(Link(profile(), service=Service(pace=Pace(10**6, 10**6)), **more))
        return links[-1]

    yield make
    for one in links:
        one.close()


def ask(number=0, **more):
    return {"protocol": 1, "op": "run", "key": uuid.uuid4().hex, "number": number, **more}


def wait_until(true, within_s=60.0):
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "not within time"
        time.sleep(0.005)


def test_requests_travel_together_and_each_has_its_own_answer(cloud, made):
    told = []
    link = made(on_sent=lambda *ids: told.append(ids))
    asked = [ask(number) for number in range(300)]
    sent = [link.submit(one) for one in asked]
    assert [one.future.result(5)["number"] for one in sent] == list(range(300))
    assert len(cloud.submissions) <= 4
    assert max(len(batch) for batch, _ in cloud.submissions) == 128
    later = link.submit(ask(7), control=True)
    assert later.future.result(5)["number"] == 7
    groups = {one.task_group_id for one in sent} | {later.task_group_id}
    assert len(groups) == 1
    assert told[:300] == [(one.key, one.task_group_id, one.task_id) for one in sent]
    (function,) = cloud.registered  # once, as source
    assert function["function_code"].split("\n", 1)[1].startswith("st\nhpcagent_entry:def hpcagent_entry(")
    bodies = [body for _, body in cloud.submissions]
    assert "task_group_id" not in bodies[0]
    assert bodies[1]["task_group_id"] == sent[0].task_group_id
    for body in bodies:
        assert body["create_queue"] is True
        assert body["endpoint"] == ENDPOINT
        assert body["user_endpoint_config"] == {"account": "m1234"}
        assert body["result_serializers"] == ["globus_compute_sdk.serialize.concretes.JSONData"]


def test_requests_of_other_resources_are_submitted_apart(cloud, made):
    link = made()
    sent = [link.submit(ask(n), resources={"num_nodes": 1 + n % 2}) for n in range(10)]
    assert [one.future.result(5)["number"] for one in sent] == list(range(10))
    assert sorted(body["resource_specification"]["num_nodes"] for _, body in cloud.submissions) == [1, 2]


def test_a_batch_stays_below_the_limit_and_what_is_larger_fails_before_it_is_sent(cloud, made):
    link = made()
    # Quotes are escaped twice on their way: 1 MB of them is 4 MB there.
    texts = ["x" * 3_000_000, '"' * 1_000_000, "\u00e9" * 400_000, "y" * 5_000_000]
    sent = [link.submit(ask(data=text)) for text in texts]
    too_large = link.submit(ask(data="z" * (9 * 2**20)))
    for one in sent:
        assert one.future.result(10)["key"] == one.key
    assert max(body["size"] for _, body in cloud.submissions) < 9 * 2**20
    error = too_large.future.exception(0)
    assert isinstance(error, AppFailed)
    assert (error.name, error.size > error.limit) == ("RequestTooLarge", True)
    assert "9.0 MiB" in error.message
    assert "by their path there" in error.message
    assert too_large.key not in {one["key"] for batch, _ in cloud.submissions for one in batch}


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_request_at_fault_fails_alone(cloud, made, status):
    link = made()
    cloud.refuses = lambda asked, _: (
        (status, {"code": "BAD", "reason": "the task is odd"})
        if any(one["number"] == 13 for one in asked)
        else None
    )
    sent = [link.submit(ask(number)) for number in range(20)]
    for number, one in enumerate(sent):
        if number != 13:
            assert one.future.result(5)["number"] == number
    error = sent[13].future.exception(5)
    assert isinstance(error, AppFailed)
    assert error.name == ("RequestTooLarge" if status == 413 else "SubmissionRefused")
    assert status == 413 or "the task is odd" in error.message
    assert link.submit(ask(99)).future.result(5)["number"] == 99


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "ENDPOINT_NOT_FOUND", f"{ENDPOINT} is not known to Globus Compute"),
        (403, "ENDPOINT_ACCESS_FORBIDDEN", f"{ENDPOINT} may not be used with these credentials"),
        (403, "FUNCTION_NOT_PERMITTED", "hpcagent's is not among them"),
        (401, "AUTHENTICATION_FAILED", "hpcagent globus login"),
    ],
)
def test_what_no_other_request_would_fare_better_with_ends_the_link(cloud, made, status, code, says):
    link = made()
    waiting = link.submit(ask(1))
    waiting.future.result(5)
    cloud.at_once = False
    under = link.submit(ask(2))
    wait_until(lambda: under.task_id)
    cloud.refuses = lambda *_: (status, {"code": code, "reason": "no\x1b[31m"})
    sent = [link.submit(ask(number)) for number in range(3)]
    for one in [*sent, under]:
        error = one.future.exception(5)
        assert isinstance(error, SiteFailed)
        assert says in error.message
        assert "\x1b" not in error.message
    with pytest.raises(SiteFailed):
        link.submit(ask(4))


def test_an_outage_is_waited_for_and_told_once(cloud, made):
    told = []
    link = made(tell=told.append)
    faults = [requests.ConnectionError("refused"), (503, {"reason": "busy"}), (429, {}), requests.Timeout("slow")]
    cloud.refuses = lambda *_: faults.pop(0) if faults else None
    sent = [link.submit(ask(number)) for number in range(5)]
    assert [one.future.result(5)["number"] for one in sent] == list(range(5))
    assert len(told) == 2, told
    assert told[0].startswith("Globus cannot be reached: ConnectionError: refused")
    assert "again" in told[1]


def test_a_submission_whose_answer_was_lost_is_sent_again_and_answered_once(cloud, made):
    link = made()
    lost = requests.exceptions.ReadTimeout("no answer")
    lost.taken = True
    faults = [lost]
    cloud.refuses = lambda *_: faults.pop() if faults else None
    sent = link.submit(ask(5))
    assert sent.future.result(5)["number"] == 5
    assert [batch[0]["key"] for batch, _ in cloud.submissions] == [sent.key, sent.key]  # there the key is known
    assert link.submit(ask(6)).future.result(5)["number"] == 6


def test_a_function_or_group_that_is_gone_is_made_again(cloud, made):
    link = made()
    first = link.submit(ask(1))
    first.future.result(5)
    faults = [
        (404, {"code": "FUNCTION_NOT_FOUND", "reason": "gone"}),
        (403, {"code": "TASK_GROUP_NOT_YOURS", "reason": "x"}),
    ]
    cloud.refuses = lambda *_: faults.pop() if faults else None
    second = link.submit(ask(2))
    assert second.future.result(5)["number"] == 2
    assert len(cloud.registered) == 2
    assert second.task_group_id != first.task_group_id


def test_results_come_whatever_becomes_of_the_broker(cloud, made):
    told = []
    link = made(tell=told.append)
    cloud.at_once = False
    sent = [link.submit(ask(number)) for number in range(4)]
    wait_until(lambda: cloud.connection and cloud.connection.consumers and sent[3].task_id)
    cloud.broker_down = True
    cloud.connection.events.put(pika.exceptions.StreamLostError("reset by peer"))
    wait_until(lambda: told)
    # While it is away the service is asked.
    cloud.finish(sent[0].task_id, {"key": sent[0].key, "number": 0})
    assert sent[0].future.result(5)["number"] == 0
    cloud.broker_down = False
    wait_until(lambda: cloud.connection and cloud.connection.consumers)
    for number in (1, 2):
        cloud.finish(sent[number].task_id, {"key": sent[number].key, "number": number})
        assert sent[number].future.result(5)["number"] == number
    # A result that the broker never brings is asked for.
    cloud.finish(sent[3].task_id, {"key": sent[3].key, "number": 3}, unheard=True)
    cloud.connection.events.put(pika.exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED"))
    assert sent[3].future.result(5)["number"] == 3
    assert PASSWORD not in str(told)


def test_a_killed_clients_tasks_are_taken_up(cloud, made, monkeypatch):
    monkeypatch.setattr(under_way, "_YOUNG_S", 1000.0)  # no other reason to ask
    cloud.at_once = False
    first = made()
    sent = [first.submit(ask(number)) for number in range(5)]
    wait_until(lambda: sent[4].task_id)
    group = sent[0].task_group_id
    first.close()
    cloud.finish(sent[0].task_id, {"key": sent[0].key, "number": 0}, unheard=True)
    link = made()
    keys = {one.task_id: one.key for one in sent[:4]}
    cloud.refused_groups.add("gone")
    again = {one.task_id: one for one in link.reattach(["gone", group], keys=keys, skip=[sent[1].task_id])}
    assert set(again) == {one.task_id for one in sent} - {sent[1].task_id}
    assert again[sent[0].task_id].future.result(5)["number"] == 0
    for number in (2, 3, 4):
        cloud.finish(sent[number].task_id, {"key": sent[number].key, "number": number})
        assert again[sent[number].task_id].future.result(5)["number"] == number
    assert again[sent[4].task_id].key == sent[4].key  # nobody had written it down
    # A queue that the service has thrown away: the service is asked.
    other = made()
    monkeypatch.setattr(under_way, "_YOUNG_S", 0.0)
    cloud.no_queue.add(f"q.{group}")
    (late,) = other.reattach([group], skip=[one.task_id for one in sent if one is not sent[1]])
    cloud.finish(sent[1].task_id, {"key": sent[1].key, "number": 1}, unheard=True)
    assert late.future.result(5)["number"] == 1


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return eval, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.mark.parametrize("way", ["broker", "service"])
def test_what_is_pickled_is_refused_and_nothing_of_it_is_executed(cloud, made, tmp_path, way):
    import dill

    mark = tmp_path / "executed"
    evil = base64.b64encode(dill.dumps(Touch(mark))).decode()
    source = f"f:open({str(mark)!r}, 'w').close()\ndef f(): pass"
    hostile = ["01\n" + evil, "00\n" + evil, "02\n" + evil, "sd\n" + source, "st\n" + source]
    hostile += [JSON_DATA + "[" * 200_000, JSON_DATA + "[1]", JSON_DATA + '{"key": "another"}', "zz\nx", ""]
    cloud.at_once = False
    link = made()
    sent = [link.submit(ask(number)) for number in range(len(hostile))]
    wait_until(lambda: sent[-1].task_id)
    reader = {one.task_id: one for one in sent}
    if way == "service":
        link.close()
        for one, data in zip(sent, hostile, strict=True):
            cloud.finish(one.task_id, data, raw=True, unheard=True)
        keys = {one.task_id: one.key for one in sent}
        reader = {one.task_id: one for one in made().reattach([sent[0].task_group_id], keys=keys)}
    else:
        for one, data in zip(sent, hostile, strict=True):
            cloud.finish(one.task_id, data, raw=True)
    for one, data in zip(sent, hostile, strict=True):
        error = reader[one.task_id].future.exception(5)
        assert isinstance(error, AppFailed), data[:50]
        assert (error.name, error.kind) == ("BadResult", "infrastructure")
    assert not mark.exists()
    dill.loads(base64.b64decode(evil))
    assert mark.exists()  # it would have


def test_messages_that_are_no_results_are_thrown_away(cloud, made):
    link = made()
    link.submit(ask(1)).future.result(5)
    wait_until(lambda: cloud.connection and cloud.connection.consumers)
    (name,) = cloud.connection.consumers
    for body in (
        b"",
        b"\x80\x04garbage",
        b'\x01{"message_type": "task"}',
        messagepack.pack(Result(task_id=uuid.uuid4(), data="x")),
    ):
        cloud.send(name, body)
    assert link.submit(ask(2)).future.result(5)["number"] == 2
    assert len(cloud.thrown_away) == 3


def test_a_task_that_failed_there_says_how(cloud, made):
    link = made()
    cloud.at_once = False
    sent = link.submit(ask(1))
    wait_until(lambda: sent.task_id)
    cloud.finish(
        sent.task_id, "Traceback\n  x\nparsl.x.errors.WorkerLost: Task failure due to loss\x1b[2J", error=True
    )
    error = sent.future.exception(5)
    assert (error.kind, error.name) == ("infrastructure", "WorkerLost")
    assert "\x1b" not in error.message + error.log_tail


def test_status_is_asked_seldom_and_says_what_is_known(cloud, made, monkeypatch):
    link = made()
    assert link.status().online
    cloud.status = {"status": "offline"}
    assert link.status().online  # of a moment ago
    assert cloud.statuses == 1
    monkeypatch.setattr(link_module, "_STATUS_S", 0.0)
    first = link.status()
    assert (first.online, first.known) == (False, True)
    assert first.words == f"endpoint {ENDPOINT} is offline"
    time.sleep(0.01)
    assert link.status().since == first.since  # since when it is so
    cloud.status = requests.ConnectionError("no route")
    assert (link.status().online, link.status().known) == (False, False)


def test_the_pace_is_that_of_the_service(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(sdk.time, "monotonic", lambda: now[0])
    pace = Pace()
    sent = []
    for _ in range(100):
        sent.append(now[0] + pace.delay())
        now[0] = max(now[0], sent[-1])
    assert sent[:5] == [0.0] * 5
    most = max(sum(at <= other < at + 10 for other in sent) for at in sent)
    assert 15 <= most <= 20  # the service allows 20 in 10 s


def test_no_secret_is_printed_written_or_raised(cloud, made, tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO)
    told = []
    link = made(tell=told.append)
    link.submit(ask(1)).future.result(5)
    wait_until(lambda: cloud.connection)  # the answer may have come otherwise
    cloud.broker_down = True
    wait_until(lambda: cloud.connection and cloud.connection.consumers)
    cloud.connection.events.put(pika.exceptions.StreamLostError(f"amqps://user:{PASSWORD}@mq"))
    faults = [
        requests.ConnectionError(f"https://x:{SECRET}@compute.api.globus.org"),
        (503, {"reason": f"client_secret={SECRET}"}),
        (400, {"reason": f"Authorization: Bearer at-canary {SECRET}"}),
    ]
    cloud.refuses = lambda *_: faults.pop(0) if faults else None
    refused = link.submit(ask(2)).future.exception(5)
    cloud.at_once = False
    failing = link.submit(ask(3))
    wait_until(lambda: failing.task_id and len(told) >= 2)
    cloud.finish(failing.task_id, f"ValueError: GLOBUS_COMPUTE_CLIENT_SECRET={SECRET}", error=True)
    failed = failing.future.exception(5)
    cloud.refuses = lambda *_: (401, {"reason": f"{SECRET} at-canary"})
    ended = link.submit(ask(4)).future.exception(5)
    seen = [*told, repr(link), repr(vars(link)), repr(link._service), repr(vars(link._service)), caplog.text]
    seen += [str(out) for out in capsys.readouterr()]
    for error in (refused, failed, ended):
        seen += [str(error), repr(error), repr(error.details), "".join(traceback.format_exception(error))]
    assert len(told) >= 2
    for text in seen:
        for canary in (SECRET, PASSWORD):
            assert canary not in text
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()


def test_closing_is_quick_and_leaves_no_thread(cloud, made):
    before = set(threading.enumerate())
    link = made()
    cloud.at_once = False
    sent = link.submit(ask(1))
    wait_until(lambda: sent.task_id and cloud.connection)
    begun = time.monotonic()
    link.close()
    link.close()
    assert time.monotonic() - begun < 20
    assert not sent.future.done()  # it goes on there
    assert set(threading.enumerate()) <= before
    with pytest.raises(SiteFailed):
        link.submit(ask(2))


def test_an_error_that_nobody_thought_of_fails_what_was_sent_and_ends_the_link(cloud, made):
    def broken(*_):
        raise RuntimeError("nobody thought of it")

    link = made(on_sent=broken)
    sent = [link.submit(ask(number)) for number in range(3)]
    for one in sent:
        with pytest.raises(SiteFailed, match="nobody thought of it"):
            one.future.result(5)


def test_reattaching_waits_only_for_what_is_open(cloud, made):
    first = made()
    sent = [first.submit(ask(number)) for number in range(3)]
    for one in sent:
        one.future.result(5)
    before = len(cloud.asked)
    (again,) = made().reattach(
        [sent[0].task_group_id], keys={sent[1].task_id: sent[1].key}, only=[sent[1].task_id]
    )
    assert again.future.result(5)["number"] == 1
    assert {task for asked in cloud.asked[before:] for task in asked} <= {sent[1].task_id}


def test_a_request_that_the_service_never_takes_fails_alone_and_others_go_on(cloud, made):
    link = made()
    cloud.refuses = lambda asked, _: (
        (500, {"reason": "boom"}) if any(one["number"] == 13 for one in asked) else None
    )
    sent = [link.submit(ask(number)) for number in range(20)]
    for number, one in enumerate(sent):
        if number != 13:
            assert one.future.result(10)["number"] == number
    for number in range(20, 60):
        if sent[13].future.done():
            break
        assert link.submit(ask(number)).future.result(10)["number"] == number
        time.sleep(0.1)
    error = sent[13].future.exception(0)
    assert (error.name, error.kind) == ("SubmissionRefused", "infrastructure")
    assert "while it took others" in error.message


def test_an_answer_of_an_unknown_form_ends_the_link_after_some(cloud, made):
    link = made()
    cloud.refuses = lambda *_: (200, {"tasks": []})
    with pytest.raises(SiteFailed, match="unknown form"):
        link.submit(ask(1)).future.result(5)
