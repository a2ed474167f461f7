"""A service on loopback that misbehaves in each way: what is tried again, what is refused, what is never recorded."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.executable import post
from hpcagent.apps.executable.service import check_url
from hpcagent.catalog import find_app
from hpcagent.errors import BadInput

HARTREE_EV = 27.211386245988  # CODATA 2018
SECRET = "the-credential-0123456789"


class Service:
    """What the server does next, and what it was sent. Each request takes the first of `script`, the last stays."""

    def __init__(self):
        self.script = [fine]
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.done: dict[str, int] = {}
        self.lock = threading.Lock()
        self.url = ""


def answer(handler, body, status=200, kind="application/json", **headers):
    body = body if isinstance(body, bytes) else body.encode()
    handler.send_response(status)
    for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def fine(handler, service, body):
    arguments = json.loads(body)
    arguments = arguments.get("arguments", arguments)
    with service.lock:  # the work is done once for each key
        service.done.setdefault(handler.headers["Idempotency-Key"], 0)
        service.done[handler.headers["Idempotency-Key"]] += 1
    result = {"energy": arguments["x"] ** 2, "steps": 7}
    answer(handler, json.dumps({"status": "success", "result": result, "units": {"energy": "Ha", "steps": "1"}}))


def says(status, body="", **headers):
    return lambda handler, service, _: answer(handler, body, status, **headers)


def text(body, **headers):
    return lambda handler, service, _: answer(handler, body, **headers)


def dropped(handler, service, body):
    handler.connection.close()


def half(handler, service, body):
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"status": "success", "res')
    handler.close_connection = True


def slow(handler, service, body):
    time.sleep(3)
    with contextlib.suppress(OSError):
        fine(handler, service, body)


def dripping(handler, service, body):
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(60):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)


def nonsense(handler, service, body):
    handler.wfile.write(b"SSH-2.0-x\r\n")
    handler.close_connection = True


def endless(handler, service, body):
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(300):
            handler.wfile.write(b" " * 100_000)
    handler.close_connection = True


def echoed(handler, service, body):
    said = {"status": "error", "message": f"no user for {handler.headers['Authorization']}"}
    answer(handler, json.dumps(said))


@pytest.fixture
def service():
    found = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with found.lock:
                found.requests.append((dict(self.headers), body))
                do = found.script.pop(0) if len(found.script) > 1 else found.script[0]
            do(self, found, body)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_):
            pass  # connections that the caller has given up

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_address[1]}/v1/square"
        yield found
        server.shutdown()


QUICK = "first_wait_s = 0.01\ntimeout_s = 10.0\nmost_wait_s = 2.0\n"


@pytest.fixture
def app_of(tmp_path):
    def make(url, http=QUICK, rest="", metrics="", top=""):
        (tmp_path / "service.toml").write_text(
            f'name = "square"\n{top}[http]\nurl = "{url}"\n{http}'
            '[parameters]\nx = { low = 0.0, high = 3.0, unit = "angstrom" }\n'
            '[metrics]\nenergy = { unit = "eV", low = 0.0, high = 1000.0 }\nsteps = { unit = "1" }\n'
            f"{metrics}{rest}"
        )
        return find_app(str(tmp_path / "service.toml"))

    return make


# ---- what is sent and read


def test_parameters_go_as_json_and_numbers_come_back_in_the_units_of_the_metrics(service, app_of, called):
    app = app_of(service.url)
    result = called(app, x=2.0)
    assert result["status"] == "COMPLETED", result
    assert result["metrics"] == {"energy": pytest.approx(4 * HARTREE_EV, rel=1e-8), "steps": 7.0}
    assert result["units"] == {"energy": "eV", "steps": "1"}
    ((headers, body),) = service.requests
    assert json.loads(body) == {"x": 2.0}
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == app.manifest({"x": 2.0}).execution_id
    assert json.loads((Path(result["workdir"]) / "answer.json").read_text())["result"]["energy"] == 4.0


def test_a_whole_call_has_units_seed_version_and_id(service, app_of, called):
    app = app_of(
        service.url, http=f'{QUICK}send = "call"\n', top='version = "1.2.0"\nconstants = { solvent = "water" }\n'
    )
    assert app.contract.seeded
    called(app, x=1.0)
    sent = json.loads(service.requests[0][1])
    assert sent == {
        "app": "square",
        "version": "1.2.0",
        "execution_id": app.manifest({"x": 1.0}).execution_id,
        "seed": app.manifest({"x": 1.0}).seed,
        "arguments": {"x": 1.0, "solvent": "water"},
        "units": {"x": "angstrom"},
    }


def test_a_campaign_of_a_service_runs_on_a_site_and_each_run_has_a_key_of_its_own(service, app_of, tmp_path):
    app = app_of(service.url)
    campaign = ha.Campaign(app, ha.minimize("energy"), until=ha.until.max_runs(3), policy="random", site="threads")
    result = ha.run(campaign, run_dir=tmp_path / "run")
    assert [r.status for r in result.results] == ["COMPLETED"] * 3
    assert set(service.done) == {r.manifest.execution_id for r in result.results}
    assert set(service.done.values()) == {1}


# ---- what is tried again


@pytest.mark.parametrize(
    "bad",
    [
        dropped,
        half,
        nonsense,
        says(502),
        says(503),
        says(504),
        says(429, Retry_After="0"),
        says(503, Retry_After="0"),
    ],
    ids=["dropped", "half a body", "no HTTP", "502", "503", "504", "429 with Retry-After", "503 with Retry-After"],
)
def test_a_broken_connection_or_a_busy_service_is_asked_again_with_the_same_key(bad, service, app_of, called):
    service.script = [bad, bad, fine]
    app = app_of(service.url)
    result = called(app, x=2.0)
    assert result["status"] == "COMPLETED", result
    assert len(service.requests) == 3
    keys = {headers["Idempotency-Key"] for headers, _ in service.requests}
    assert keys == {app.manifest({"x": 2.0}).execution_id}
    assert list(service.done.values()) == [1]
    assert sum("sent again" in note for note in result["notes"]) == 2


def test_an_answer_that_was_lost_on_its_way_is_asked_for_again_and_the_service_knows_the_key(
    service, app_of, called
):
    def lost(handler, service, body):
        service.done[handler.headers["Idempotency-Key"]] = 1
        handler.connection.close()

    service.script = [lost, fine]
    assert called(app_of(service.url), x=2.0)["status"] == "COMPLETED"
    assert list(service.done.values()) == [2]  # two requests that the service can tell to be one


def test_a_service_that_says_when_is_asked_then_and_not_before(service, app_of, called):
    service.script = [says(503, Retry_After="1"), fine]
    began = time.monotonic()
    assert called(app_of(service.url), x=2.0)["status"] == "COMPLETED"
    assert time.monotonic() - began >= 1.0


def test_waits_double_up_to_the_longest(monkeypatch, service, app_of, called):
    waits = []
    monkeypatch.setattr(post.time, "sleep", waits.append)
    monkeypatch.setattr(post.random, "uniform", lambda low, high: high)
    service.script = [says(503)]
    http = "first_wait_s = 1.0\nmost_wait_s = 5.0\nretries = 4\ntimeout_s = 10.0\n"
    failure = called(app_of(service.url, http=http), x=1.0)["failure"]
    assert waits == [1.0, 2.0, 4.0, 5.0]
    assert (failure["name"], failure["kind"]) == ("ServiceBusy", "infrastructure")
    assert "503 Service Unavailable, 5 times" in failure["message"]


def test_a_service_that_asks_for_too_long_a_wait_has_failed_the_run(service, app_of, called):
    service.script = [says(429, Retry_After="3600")]
    failure = called(app_of(service.url), x=1.0)["failure"]
    assert failure["name"] == "ServiceBusy"
    assert "asks to wait 3600 s" in failure["message"]
    assert len(service.requests) == 1


def test_a_date_to_wait_for_is_understood():
    import email.utils

    later = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 27 < post._retry_after(later) <= 30
    assert post._retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_nobody_at_the_address_is_told_after_the_retries(app_of, called):
    http = "first_wait_s = 0.01\nretries = 2\n"
    failure = called(app_of("http://127.0.0.1:9", http=http), x=1.0)["failure"]
    assert (failure["name"], failure["kind"]) == ("ServiceUnreachable", "infrastructure")
    assert "Connection refused), 3 times" in failure["message"]


# ---- what is not


@pytest.mark.parametrize(
    ("bad", "name", "kind", "says_"),
    [
        (says(500, "stack trace"), "ServiceFailed", "infrastructure", "500 Internal Server Error: stack trace"),
        (says(429), "ServiceBusy", "infrastructure", "429"),
        (says(400, "no x"), "ServiceRefused", "contract", "400 Bad Request: no x"),
        (says(404), "ServiceRefused", "contract", "404"),
        (says(401), "ServiceDenied", "infrastructure", "401"),
        (says(403), "ServiceDenied", "infrastructure", "403"),
        (says(302, Location="http://169.254.169.254/"), "Redirected", "contract", "sends us to http://169.254.169.254/"),
        (says(307, Location="/other"), "Redirected", "contract", "sends us to /other"),
        (says(204), "BadOutput", "contract", "204"),
        (text("energy = 3"), "BadOutput", "contract", "is no JSON"),
        (text("<html>", kind="text/html"), "BadOutput", "contract", "with text/html"),
        (text(b"\x1f\x8b\x08", Content_Encoding="gzip"), "BadOutput", "contract", "packed with gzip"),
        (text("[1, 2]"), "BadOutput", "contract", "is no answer"),
        (text('{"status": "success", "result": 3}'), "MissingMetric", "contract", "energy"),
        (text('{"status": "success", "result": {"energy": 1}}'), "MissingMetric", "contract", "steps"),
        (text('{"status": "success", "result": {"energy": "1", "steps": 1}}'), "BadOutput", "contract", "no number"),
        (text('{"status": "success", "result": {"energy": true, "steps": 1}}'), "BadOutput", "contract", "no number"),
        (text('{"status": "success", "result": {"energy": NaN, "steps": 1}}'), "NotFinite", "simulation", "nan"),
        (text('{"status": "success", "result": {"energy": 1e999, "steps": 1}}'), "NotFinite", "simulation", "inf"),
        (text('{"status": "success", "result": {"energy": null, "steps": 1}}'), "BadOutput", "contract", "null"),
        (text('{"status": "success", "result": {"energy": -1, "steps": 1}}'), "OutOfRange", "contract", r"outside of \[0, 1000\] eV"),
        (text('{"status": "ok", "result": {"energy": 1, "steps": 1}, "units": {"energy": "K"}}'), "WrongUnit", "contract", "'K'"),
        (text('{"status": "error", "message": "no such basis"}'), "ReportedError", "simulation", "no such basis"),
        (text("[" * 100_000), "BadOutput", "contract", "nested too deeply"),
        (endless, "AnswerTooLarge", "contract", "more than 1 MB"),
        (text(b" " * 2_000_000), "AnswerTooLarge", "contract", "has 2 MB; most_mb is 1 MB"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_a_typed_failure_at_once(bad, name, kind, says_, service, app_of, called):
    import re

    service.script = [bad]
    failure = called(app_of(service.url, http=f"{QUICK}most_mb = 1.0\n"), x=1.0)["failure"]
    assert (failure["name"], failure["kind"]) == (name, kind), failure
    assert re.search(says_, failure["message"]), failure
    assert len(service.requests) == 1
    assert name in app_of(service.url).contract.failure_modes


@pytest.mark.parametrize("bad", [slow, dripping], ids=["silent", "a byte now and then"])
def test_a_slow_service_is_given_up_at_the_limit_and_not_asked_again(bad, service, app_of, called):
    service.script = [bad]
    began = time.monotonic()
    failure = called(app_of(service.url, http="timeout_s = 0.5\n"), x=1.0)["failure"]
    assert (failure["name"], failure["kind"]) == ("ServiceTimeout", "infrastructure"), failure
    assert time.monotonic() - began < 2.5
    assert len(service.requests) == 1


def test_the_walltime_of_the_run_is_the_last_limit(service, app_of, called):
    service.script = [slow]
    failure = called(app_of(service.url, rest="[resources]\nwalltime_s = 0.5\n"), x=1.0)["failure"]
    assert failure["name"] == "Walltime", failure


def test_units_that_are_required_have_to_be_there(service, app_of, called):
    service.script = [text('{"status": "ok", "result": {"energy": 1, "steps": 1}, "units": {"energy": "eV"}}')]
    failure = called(app_of(service.url, http=f'{QUICK}units = "required"\n'), x=1.0)["failure"]
    assert (failure["name"], "'steps'" in failure["message"]) == ("WrongUnit", True)


# ---- credentials


def everything(folder):
    return "\n".join(p.read_text(errors="replace") for p in Path(folder).rglob("*") if p.is_file())


def test_a_credential_is_read_when_called_and_stands_in_no_record(service, app_of, tmp_path, monkeypatch):
    monkeypatch.setenv("SQUARE_TOKEN", SECRET)
    service.script = [fine, echoed]
    app = app_of(service.url, rest='[http.credential]\nenv = "SQUARE_TOKEN"\n')
    campaign = ha.Campaign(app, ha.minimize("energy"), until=ha.until.max_runs(2), policy="random", site="threads")
    result = ha.run(campaign, run_dir=tmp_path / "run")
    assert {headers["Authorization"] for headers, _ in service.requests} == {f"Bearer {SECRET}"}
    failed = [r for r in result.results if r.status == "FAILED"]
    assert [r.failure.name for r in failed] == ["ReportedError"]
    assert "no user for (hidden)" in failed[0].failure.message
    assert SECRET not in everything(tmp_path / "run")
    assert SECRET not in json.dumps(app.settings)


def test_a_credential_of_a_file_that_others_may_read_is_not_sent(service, app_of, called, tmp_path):
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    app = app_of(service.url, rest=f'[http.credential]\nfile = "{path}"\nheader = "X-Key"\nscheme = ""\n')
    path.chmod(0o644)
    failure = called(app, x=1.0)["failure"]
    assert failure["name"] == "NoCredential"
    assert "chmod 600" in failure["message"]
    assert service.requests == []
    path.chmod(0o600)
    assert called(app, x=2.0)["status"] == "COMPLETED"
    assert service.requests[0][0]["X-Key"] == SECRET


@pytest.mark.parametrize(
    ("value", "why"), [(None, "is not set"), ("two words", "more than one"), ("a\nB: c", "more than one")]
)
def test_a_credential_that_is_not_there_or_would_be_two_headers_is_not_sent(
    value, why, service, app_of, called, monkeypatch
):
    monkeypatch.delenv("SQUARE_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("SQUARE_TOKEN", value)
    failure = called(app_of(service.url, rest='[http.credential]\nenv = "SQUARE_TOKEN"\n'), x=1.0)["failure"]
    assert (failure["name"], why in failure["message"]) == ("NoCredential", True)
    assert service.requests == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://models.example.org/x", "http is for this machine only"),
        ("http://localhost.example.org/x", "http is for this machine only"),
        ("http://127.0.0.1@example.org/", "user or a password"),
        ("https://ann:pw@example.org/", "user or a password"),
        ("https://example.org/?api_key=abcdef", "credential"),
        ("ftp://example.org/", "begins with https"),
        ("file:///etc/passwd", "begins with https"),
        ("https:///x", "begins with https"),
        ("https://example.org:99999/", "is no address"),
        ("https://example.org/a b", "without blanks"),
        ("https://example.org/#x", "without blanks and #"),
    ],
)
def test_an_address_that_may_not_be_posted_to_is_refused(url, why):
    with pytest.raises(BadInput, match=why) as caught:
        check_url(url)
    assert "pw" not in caught.value.message
    assert "abcdef" not in caught.value.message


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (
            '[http.headers]\nAuthorization = "Bearer abcdefghijklmnop.1"\n',
            "would write a credential into every record",
        ),
        ('[http.headers]\nX-Api-Key = "abc"\n', "would write a credential"),
        ('[http.headers]\nHost = "other"\n', "none that can be set"),
        ('[http.credential]\nheader = "X"\n', "name env"),
        ('[constants]\napi_token = "abcdefgh"\n', "is a credential"),
        ("[http.credential]\nvalue = 'abc'\n", "value"),
    ],
)
def test_a_credential_that_would_be_recorded_is_refused(rest, why, service, app_of):
    with pytest.raises(BadInput, match=why):
        app_of(service.url, rest=rest)


def test_proxies_of_the_environment_are_not_used(service, app_of, called, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert called(app_of(service.url), x=1.0)["status"] == "COMPLETED"
    assert os.environ["http_proxy"]


def test_what_a_service_cannot_have_is_refused(service, app_of):
    with pytest.raises(BadInput, match="a service answers JSON"):
        app_of(service.url, metrics='other = { unit = "1", regex = "x" }\n')
    with pytest.raises(BadInput, match="a parameter and a constant"):
        app_of(service.url, rest="[constants]\nx = 1\n")
