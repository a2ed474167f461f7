"""Who one is to Globus is found without asking, and said without secrets."""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hpcagent.errors import BadInput, SiteFailed
from hpcagent.sites.endpoint import credentials
from hpcagent.sites.endpoint.entry import hpcagent_entry
from hpcagent.sites.endpoint.refusals import of_service

SECRET = "canary-5f1d0c"


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    monkeypatch.delenv(credentials.CLIENT_ID, raising=False)
    monkeypatch.delenv(credentials.CLIENT_SECRET, raising=False)
    monkeypatch.setenv(credentials.FOLDER, str(tmp_path / "globus"))


def no_questions(*_):
    raise AssertionError("somebody was asked")


def test_without_the_package_one_error_names_the_extra(monkeypatch):
    real = credentials.import_module

    def missing(name):
        if name == "globus_compute_sdk":
            raise ModuleNotFoundError("No module named 'globus_compute_sdk'")
        return real(name)

    monkeypatch.setattr(credentials, "import_module", missing)
    with pytest.raises(BadInput, match=r"pip install 'hpcagent\[globus\]'"):
        credentials.require_sdk()


def test_importing_hpcagent_and_its_link_does_not_import_the_package():
    code = "import sys, hpcagent.sites.endpoint.link; print([m for m in sys.modules if m.startswith(('globus', 'pika'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("given", [credentials.CLIENT_ID, credentials.CLIENT_SECRET])
def test_half_of_a_clients_credentials_is_refused(monkeypatch, given):
    monkeypatch.setenv(given, SECRET)
    with pytest.raises(BadInput) as refused:
        credentials.app()
    missing = {credentials.CLIENT_ID, credentials.CLIENT_SECRET} - {given}
    assert f"{given} is set in the environment and {missing.pop()} is not" in refused.value.message
    assert SECRET not in refused.value.message


def test_without_a_login_nobody_is_asked_and_nothing_is_made(monkeypatch, tmp_path):
    pytest.importorskip("globus_compute_sdk")
    monkeypatch.setattr(builtins, "input", no_questions)
    with pytest.raises(SiteFailed, match=r"Nobody is logged in to Globus.*hpcagent globus login"):
        credentials.app()
    assert not (tmp_path / "globus").exists()
    assert credentials.whoami()["valid"] is False
    assert "nobody was logged in" in credentials.logout()


def stored(tmp_path, monkeypatch, *, expires, refresh=None):
    pytest.importorskip("globus_compute_sdk")
    from globus_compute_sdk.sdk.auth.token_storage import get_token_storage
    from globus_sdk.token_storage import TokenStorageData

    store = get_token_storage()
    data = TokenStorageData(
        resource_server="funcx_service",
        identity_id=None,
        scope="https://auth.globus.org/scopes/facd7ccc-c5f4-42aa-916b-a0e270e2c2a9/all",
        access_token="at-canary",
        refresh_token=refresh,
        expires_at_seconds=int(expires),
        token_type="Bearer",
    )
    store.store_token_data_by_resource_server({"funcx_service": data})
    store.close()


def test_a_login_that_is_kept_is_used_and_one_that_expired_is_not_renewed_by_asking(monkeypatch, tmp_path):
    monkeypatch.setattr(builtins, "input", no_questions)
    stored(tmp_path, monkeypatch, expires=time.time() + 3600, refresh="rt-canary")
    about = credentials.whoami()
    assert about["how"] == "login"
    assert "canary" not in json.dumps(about)
    stored(tmp_path, monkeypatch, expires=time.time() - 10)
    with pytest.raises(SiteFailed, match="has expired") as failed:
        credentials.app()
    assert "canary" not in failed.value.message


def test_a_login_that_ends_in_mid_campaign_ends_the_link_and_asks_nobody(monkeypatch, tmp_path):
    stored(tmp_path, monkeypatch, expires=time.time() - 10)
    from globus_sdk.globus_app import GlobusApp
    from globus_sdk.token_storage import TokenValidationError

    monkeypatch.setattr(builtins, "input", no_questions)
    monkeypatch.setattr(GlobusApp, "login_required", lambda _: False)  # it was not, a moment ago
    found = credentials.app()
    with pytest.raises(TokenValidationError) as ended:
        found.get_authorizer("funcx_service")
    meant = of_service(ended.value, "e")
    assert isinstance(meant, SiteFailed)
    assert "hpcagent globus login" in meant.message


def test_login_refuses_where_nobody_can_answer(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(BadInput, match="no terminal here"):
        credentials.login()
    monkeypatch.setenv(credentials.CLIENT_ID, "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee")
    monkeypatch.setenv(credentials.CLIENT_SECRET, SECRET)
    for doing in (credentials.login, credentials.logout):
        with pytest.raises(BadInput) as refused:
            doing()
        assert SECRET not in refused.value.message


def test_login_in_a_terminal_is_globuss_own(monkeypatch):
    pytest.importorskip("globus_compute_sdk")
    shown = []
    monkeypatch.setattr(sys, "stdin", type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())
    monkeypatch.setattr(sys, "stdout", type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())

    def asked(words=""):
        shown.append(words + sys.stdout.getvalue())
        raise EOFError("Ctrl-D")

    monkeypatch.setattr(builtins, "input", asked)
    with pytest.raises(SiteFailed, match="The login failed"):
        credentials.login()
    assert "https://auth.globus.org/v2/oauth2/authorize" in shown[0]


def test_texts_are_shown_without_secrets(monkeypatch):
    monkeypatch.setenv(credentials.CLIENT_SECRET, SECRET)
    text = f"a {SECRET} b Basic YWI6Y2Q= c 'access_token': 'xyz', amqp://u:pw@h/v {{\"password\": \"hunter\"}}"
    shown = credentials.hidden(text)
    for word in (SECRET, "YWI6Y2Q=", "xyz", "pw", "hunter"):
        assert word not in shown.replace("password", "")


PROCESS = """
import os, sys, threading, time
from types import SimpleNamespace as N
from hpcagent.sites.endpoint.link import Link
there = N(user_endpoint_config={})
profile = N(endpoint_id="x", user_endpoint_config={}, executors={"workers": there}, amqp_port=None,
            control=N(endpoint_id="", user_endpoint_config=None))
told = threading.Event()
link = Link(profile, tell=lambda words: (print(words, flush=True), told.set()))
sent = link.submit({"key": "a" * 32, "op": "look"})
child = os.fork()
if child == 0:
    print("child", flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
told.wait(0.5)
print("waiting", flush=True)
sent.future.result()
"""


def test_a_process_with_a_link_forks_and_ends_on_ctrl_c_though_nothing_answers(tmp_path):
    pytest.importorskip("globus_compute_sdk")
    env = {
        **os.environ,
        credentials.CLIENT_ID: "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee",
        credentials.CLIENT_SECRET: SECRET,
        credentials.FOLDER: str(tmp_path),
        "GLOBUS_SDK_SERVICE_URL_AUTH": "http://127.0.0.1:9/",  # nobody listens
    }
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROCESS],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out = ""
        while "waiting" not in out:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            out += line
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert time.monotonic() - begun < 30
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "child" in out
    assert SECRET not in out + rest + errors


def test_the_entry_stands_alone_and_answers_in_json_whatever_happens(monkeypatch):
    import inspect

    space: dict = {}
    exec(inspect.getsource(hpcagent_entry), space)
    entry = space["hpcagent_entry"]
    from hpcagent.sites.endpoint import there

    monkeypatch.setattr(there, "answer", lambda request: {"key": request["key"], "found": 1})
    assert entry({"key": "k"}) == {"key": "k", "found": 1}

    def breaks(_):
        raise ValueError("out of \ud800 cheese")

    for broken, name in (
        (breaks, "ValueError"),
        (lambda _: {"x": {1}}, "TypeError"),
        (lambda _: float("nan"), "ValueError"),
    ):
        monkeypatch.setattr(there, "answer", broken)
        failed = json.loads(json.dumps(entry({"key": "k"})))
        assert failed["key"] == "k"
        assert (failed["error"]["name"], failed["error"]["kind"]) == (name, "infrastructure")
        assert "Traceback" in failed["error"]["log_tail"]
    assert entry("no dict")["key"] is None
    monkeypatch.setitem(sys.modules, "hpcagent.sites.endpoint.there", None)
    missing = entry({"key": "k"})["error"]
    assert missing["name"] == "AppNotImportable"
    assert "pip install hpcagent" in missing["message"]


def test_without_the_extra_every_door_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "globus_compute_sdk", None)
    monkeypatch.setenv("GLOBUS_COMPUTE_CLIENT_ID", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee")
    monkeypatch.setenv("GLOBUS_COMPUTE_CLIENT_SECRET", "none")
    with pytest.raises(BadInput, match=r"hpcagent\[globus\]"):
        credentials.whoami()
    monkeypatch.delenv("GLOBUS_COMPUTE_CLIENT_ID")
    monkeypatch.delenv("GLOBUS_COMPUTE_CLIENT_SECRET")
    with pytest.raises(BadInput, match=r"hpcagent\[globus\]"):
        credentials.login()
