"""Tokens of an issuer: which are taken, for whom, with what scopes; and every trick that is known."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from hpcagent.errors import BadInput
from hpcagent.mcp import sessions
from hpcagent.mcp.callers import Callers
from hpcagent.mcp.http import Issuer, app_of, guard_of
from hpcagent.mcp.jwks import LARGEST, Keys, require_safe_url
from hpcagent.mcp.server import make_server

ISSUER = "https://login.example.org"
URL = "http://127.0.0.1:8123/mcp"
RULES = """\
name = "group"
default_site = "threads"
people = { ada = { role = "planner" }, bob = { role = "viewer" }, cem = { role = "planner", subject = "idp|4/2" } }
"""
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGERS = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OF = {"RS256": RSA, "ES256": EC, "EdDSA": ED}


def jwk(key: Any, algorithm: str, kid: str) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, "use": "sig"}


def key_set(*more: dict[str, Any]) -> dict[str, Any]:
    return {"keys": [*(jwk(key, algorithm, algorithm) for algorithm, key in OF.items()), *more]}


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {"iss": ISSUER, "aud": URL, "sub": "ada", "iat": now, "exp": now + 600}
    return {k: v for k, v in (made | {"scope": "runs:read runs:write"} | more).items() if v is not None}


def token(algorithm: str = "RS256", key: Any = None, headers: dict[str, Any] | None = None, **more: Any) -> str:
    return jwt.encode(claims(**more), key or OF[algorithm], algorithm, headers or {"kid": algorithm})


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def by_hand(header: Any, body: Any, signature: bytes = b"") -> str:
    return ".".join((b64(json.dumps(header).encode()), b64(json.dumps(body).encode()), b64(signature)))


PEM = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def with_public_key_as_secret(header: dict[str, Any]) -> str:
    """A token that is signed by the public key, as if that were a secret of both sides."""
    import hashlib
    import hmac

    said = by_hand(header, claims()).rpartition(".")[0]
    return f"{said}.{b64(hmac.digest(PEM, said.encode(), hashlib.sha256))}"


@pytest.fixture
def folder(workspace, tmp_path) -> Path:
    (workspace.folder.root / "workspace.toml").write_text(RULES)
    (tmp_path / "jwks.json").write_text(json.dumps(key_set()))
    (tmp_path / "jwks.json").chmod(0o600)
    return workspace.folder.root


@pytest.fixture
def call(folder, tmp_path):
    """Send a request with these headers to a server in this process; or drive a client of it."""

    def run(headers: dict[str, str], body: Any = None, *, jwks: str = "", **of_issuer: str) -> Any:
        async def main() -> Any:
            issuer = Issuer(ISSUER, jwks or str(tmp_path / "jwks.json"), **of_issuer)
            await issuer.keys.load()
            callers = Callers(folder)
            guard = guard_of(folder, URL, issuer=issuer)
            app = app_of(make_server(callers, guard=guard), URL, guarded=True)
            try:
                async with app.router.lifespan_context(app):
                    transport = httpx2.ASGITransport(app=app)
                    async with httpx2.AsyncClient(transport=transport, headers=headers) as http:
                        if body is None:
                            return await http.post(URL, json={})
                        async with Client(streamable_http_client(URL, http_client=http)) as client:
                            return await body(client)
            finally:
                callers.close()

        return anyio.run(main)

    return run


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


LET_IN = 400  # past the tokens: what follows is no request of MCP


@pytest.mark.parametrize("algorithm", OF)
def test_a_valid_token_is_taken(call, algorithm):
    assert call(bearer(token(algorithm))).status_code == LET_IN
    assert (
        call(bearer(token(algorithm, headers={"typ": "at+jwt"}))).status_code == LET_IN
    )  # the only one of its kind


NOW = int(time.time())


@pytest.mark.parametrize(
    "bad",
    {
        "none": lambda: by_hand({"alg": "none", "typ": "JWT"}, claims()),
        "None": lambda: by_hand({"alg": "None", "kid": "RS256"}, claims()),
        "no algorithm": lambda: by_hand({"kid": "RS256"}, claims(), b"x"),
        "a list of algorithms": lambda: by_hand({"alg": ["RS256"], "kid": "RS256"}, claims(), b"x"),
        "HS256 by the public key": lambda: with_public_key_as_secret({"alg": "HS256", "kid": "RS256"}),
        "RS256 signed as HS256": lambda: with_public_key_as_secret({"alg": "RS256", "kid": "RS256"}),
        "HS256 by nothing": lambda: jwt.encode(claims(), "x" * 32, "HS256", {"kid": "RS256"}),
        "RS512": lambda: jwt.encode(claims(), RSA, "RS512", {"kid": "RS256"}),
        "PS256": lambda: jwt.encode(claims(), RSA, "PS256", {"kid": "RS256"}),
        "a stranger's key": lambda: token(key=STRANGERS),
        "a stranger's key in the header": lambda: token(
            key=STRANGERS, headers={"kid": "x", "jwk": jwk(STRANGERS, "RS256", "x")}
        ),
        "a stranger's URL in the header": lambda: token(
            key=STRANGERS, headers={"kid": "x", "jku": "https://evil.example/keys"}
        ),
        "another key's id": lambda: token("RS256", headers={"kid": "ES256"}),
        "a path as id": lambda: token(headers={"kid": "../../../../dev/null"}),
        "an id that is no text": lambda: by_hand({"alg": "RS256", "kid": 7}, claims(), b"x"),
        "critical": lambda: token(headers={"kid": "RS256", "crit": ["b64"], "b64": False}),
        "expired": lambda: token(exp=NOW - 60),
        "without an end": lambda: token(exp=None),
        "an end that is no number": lambda: by_hand({"alg": "RS256", "kid": "RS256"}, claims(exp="x"), b"x"),
        "not yet": lambda: token(nbf=NOW + 3600),
        "issued in the future": lambda: token(iat=NOW + 3600),
        "another issuer": lambda: token(iss="https://evil.example"),
        "an issuer that begins so": lambda: token(iss=ISSUER + ".evil.example"),
        "no issuer": lambda: token(iss=None),
        "another audience": lambda: token(aud="https://other.example/mcp"),
        "audiences without ours": lambda: token(aud=["a", URL + "/x"]),
        "no audience": lambda: token(aud=None),
        "a changed body": lambda: token().replace(".", ".e", 1),
        "no token": lambda: "x.y.z",
        "no text": lambda: "\x00" * 10,
        "empty parts": lambda: "..",
        "too long": lambda: "a" * 20_000,
        "deep": lambda: b64(b"[" * 9000) + ".e30.e30",
        "infinite": lambda: b64(b'{"alg":"RS256","kid":"RS256","exp":1e999}') + ".e30.e30",
        "five parts": lambda: token() + ".a.b",
    }.items(),
    ids=lambda one: one[0],
)
def test_what_is_not_valid_is_401_and_says_where_tokens_come_from(call, bad, caplog):
    text = bad[1]()
    answer = call({"Authorization": b"Bearer " + text.encode("latin-1")})
    assert answer.status_code == 401, answer.text
    said = answer.headers["WWW-Authenticate"]
    assert 'resource_metadata="http://127.0.0.1:8123/.well-known/oauth-protected-resource/mcp"' in said
    assert text[:200] not in caplog.text + answer.text + said


def test_a_signed_end_that_is_infinite_is_not_taken(call):
    infinite = json.dumps(claims(exp=7)).replace('"exp": 7', '"exp": 1e999')
    assert "1e999" in infinite and call(bearer(signed(infinite))).status_code == 401
    for end in ("1" + "0" * 400, '"4102444800"', "true", "1e300", "null", "[]"):
        other = json.dumps(claims(exp=7)).replace('"exp": 7', f'"exp": {end}')
        assert call(bearer(signed(other))).status_code == 401, end
    assert call(bearer(signed(json.dumps(claims())))).status_code == LET_IN
    assert call(bearer(signed("[" * 5000))).status_code == 401
    assert call(bearer(signed("7"))).status_code == 401


def signed(body: str) -> str:
    """A token with a true signature, and anything in it."""
    said = f"{b64(json.dumps({'alg': 'RS256', 'kid': 'RS256'}).encode())}.{b64(body.encode())}"
    return f"{said}.{b64(jwt.get_algorithm_by_name('RS256').sign(said.encode(), RSA))}"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "127.0.0.1:80.evil.com"}, 421),
        ({"Host": "localhost:80@evil.com"}, 421),
        ({"Host": "evil.com"}, 421),
        ({"Origin": "http://localhost:@evil.com"}, 403),
        ({"Origin": "http://localhost:80.evil.com"}, 403),
        ({"Origin": "http://[::1]:80/x"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:8080", "Host": "[::1]:9"}, LET_IN),
    ],
)
def test_a_host_or_origin_that_only_begins_rightly_is_refused(call, headers, code):
    assert call(bearer(token()) | headers).status_code == code


def test_one_person_has_so_many_sessions_and_another_still_gets_one(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_OF_ONE", 3)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}

    async def main() -> None:
        issuer = Issuer(ISSUER, str(tmp_path / "jwks.json"))
        await issuer.keys.load()
        callers = Callers(folder)
        server = make_server(callers, guard=guard_of(folder, URL, issuer=issuer))
        app = app_of(server, URL, guarded=True)
        async with app.router.lifespan_context(app):
            http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))

            async def post(who: str, body: dict[str, Any], **more: str) -> httpx2.Response:
                taken = {"Accept": "application/json, text/event-stream"}
                return await http.post(URL, headers=bearer(token(sub=who)) | taken | more, json=body)

            first, *rest = [await post("ada", opening) for _ in range(4)]
            assert [one.status_code for one in (first, *rest)] == [200, 200, 200, 503]
            assert "you have 3 open sessions" in rest[-1].json()["error"]["message"]
            assert (await post("bob", opening)).status_code == 200
            manager = server.session_manager
            session = first.headers["mcp-session-id"]
            transport = manager._server_instances[session]
            assert transport._idle_timeout == sessions.NEVER_CALLED_S
            for n in (2, 3):
                asked = {"jsonrpc": "2.0", "id": n, "method": "ping"}
                assert (await post("ada", asked, **{"Mcp-Session-Id": session})).status_code == 200
            assert transport._idle_timeout > sessions.NEVER_CALLED_S
            ended = await http.delete(URL, headers=bearer(token(sub="ada")) | {"Mcp-Session-Id": session})
            assert ended.status_code == 200
            assert (await post("ada", opening)).status_code == 200
            await http.aclose()
        callers.close()

    anyio.run(main)


@pytest.mark.parametrize("who", ["eve", "", None, 7, ["ada"], "ADA", "ada ", "root", "idp|4/2 ", "cem"])
def test_somebody_who_is_not_known_is_403_and_never_the_owner(call, who):
    answer = call(bearer(token(sub="ada", who=who)), person_claim="who")
    assert answer.status_code == 403 and answer.json()["error"] == "access_denied"


async def run_something(client: Client) -> Any:
    return await client.call_tool("run_job", {"kind": "synthetic", "params": {"timestep": 1e-3, "skin": 3.0}})


def test_a_token_speaks_for_its_person_with_its_scopes(call, workspace):
    by_ada = call(bearer(token()), run_something)
    assert not by_ada.is_error
    by_cem = call(
        bearer(token(sub="idp|4/2", scope=None, scp=["runs:read", "runs:write", "other", 7])), run_something
    )
    assert not by_cem.is_error and workspace.list()["runs"]
    lines = [json.loads(line) for line in workspace.folder.journal.read_text().splitlines()]
    assert [one["owner"] for one in lines if one["event"] == "asked"] == ["ada", "cem"]
    assert token() not in workspace.folder.journal.read_text()

    by_bob = call(bearer(token(sub="bob")), run_something)  # the scope would do, the role does not
    assert by_bob.is_error and by_bob.structured_content["refused"]["check"] == "caller"
    read_only = call(bearer(token(scope="runs:read")), run_something)
    assert read_only.is_error and "needs the scope runs:write" in read_only.content[0].text


@pytest.mark.parametrize("scope", ["", "runs:write", "RUNS:READ", "runs:readx", "runs:read,runs:write", None])
def test_a_token_without_runs_read_opens_nothing(call, scope):
    answer = call(bearer(token(scope=scope)))
    assert answer.status_code == 403 and "insufficient_scope" in answer.headers["WWW-Authenticate"]


def test_people_are_read_again_and_a_broken_file_lets_nobody_in(call, folder):
    (folder / "workspace.toml").write_text(RULES.replace("ada", "eva"))
    assert call(bearer(token())).status_code == 403
    (folder / "workspace.toml").write_text(RULES.replace("cem = { role", "cem = { rolle"))
    assert call(bearer(token(sub="cem"))).status_code == 403
    (folder / "workspace.toml").write_text(RULES)  # for the end of the test


def test_a_stream_ends_with_its_token(folder, tmp_path):
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"_meta": meta, "notifications": {"toolsListChanged": True}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "subscriptions/listen",
    }

    async def main() -> Any:
        issuer = Issuer(ISSUER, str(tmp_path / "jwks.json"))
        await issuer.keys.load()
        callers = Callers(folder)
        app = app_of(make_server(callers, guard=guard_of(folder, URL, issuer=issuer)), URL, guarded=True)
        try:
            async with app.router.lifespan_context(app):
                async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
                    # What takes long the first time is done before: a token that ends until then is refused.
                    tools = {
                        **body,
                        "method": "tools/call",
                        "params": {"_meta": meta, "name": "get_workspace", "arguments": {}},
                    }
                    named = headers | bearer(token()) | {"Mcp-Method": "tools/call", "Mcp-Name": "get_workspace"}
                    assert (await http.post(URL, json=tools, headers=named, timeout=60)).status_code == 200
                    short = bearer(
                        token(exp=int(time.time()) - 25)
                    )  # with the leeway it holds for another five seconds
                    with anyio.fail_after(60):  # the transport gives the answer once it has ended
                        return await http.post(URL, json=body, headers=headers | short, timeout=60)
        finally:
            callers.close()

    answer = anyio.run(main)
    assert answer.status_code == 200 and "acknowledged" in answer.text, answer.text


def test_where_tokens_come_from_is_told_to_everybody(folder, tmp_path):
    async def main() -> Any:
        issuer = Issuer(ISSUER, str(tmp_path / "jwks.json"))
        callers = Callers(folder)
        guard = guard_of(folder, URL, issuer=issuer)
        app = app_of(make_server(callers, guard=guard), URL, guarded=True)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
            return await http.get("http://127.0.0.1:8123/.well-known/oauth-protected-resource/mcp")

    found = anyio.run(main).json()
    assert found["resource"] == URL and found["authorization_servers"] == [f"{ISSUER}/"]


# -- keys ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def keys_at(answer: Any) -> Iterator[tuple[str, list[str]]]:
    """A server of keys on loopback: its URL, and what was asked of it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, headers, body = answer(len(asked))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}/keys", asked
        finally:
            made.shutdown()
            thread.join()


def test_a_new_key_is_found_and_unknown_ones_do_not_ask_again_and_again():
    clock = [0.0]

    def answer(n: int) -> Any:
        more = [jwk(STRANGERS, "RS256", "new")] if n > 1 else []
        return 200, {}, json.dumps(key_set(*more)).encode()

    async def body(url: str) -> None:
        keys = Keys(url, now=lambda: clock[0])
        await keys.load()
        assert await keys.key("RS256", "RS256") is not None and len(asked) == 1
        assert await keys.key("new", "RS256") is None and len(asked) == 1  # asked a moment ago
        clock[0] += 31
        assert await keys.key("new", "RS256") is not None and len(asked) == 2
        for n in range(100):
            assert await keys.key(f"x{n}", "RS256") is None
        assert len(asked) == 2
        clock[0] += 3601  # keys that were withdrawn are no longer taken after an hour
        assert await keys.key("RS256", "RS256") is not None and len(asked) == 3

    with keys_at(answer) as (url, asked):
        anyio.run(body, url)


def test_keys_of_an_issuer_that_is_gone_hold_for_a_day():
    clock = [0.0]

    async def body(url: str) -> None:
        keys = Keys(url, now=lambda: clock[0])
        await keys.load()
        clock[0] += 3601
        assert await keys.key("RS256", "RS256") is not None
        clock[0] += 86401
        assert await keys.key("RS256", "RS256") is None

    with keys_at(lambda n: (200 if n == 1 else 503, {}, json.dumps(key_set()).encode())) as (url, _):
        anyio.run(body, url)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((302, {"Location": "http://169.254.169.254/"}, b""), "answers 302"),
        ((404, {}, b""), "answers 404"),
        ((200, {}, b" " * (LARGEST + 1)), "more than"),
        ((200, {}, b"<html>"), "no key set"),
        ((200, {}, b"[" * 100_000), "no key set"),
        ((200, {}, b'{"keys": 7}'), "no key set"),
        ((200, {}, b'{"keys": []}'), "no key for"),
        (
            (200, {}, json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}).encode()),
            "no key for",
        ),
    ],
)
def test_what_is_no_key_set_is_one_clear_error(answer, why):
    with keys_at(lambda n: answer) as (url, asked):
        with pytest.raises(BadInput, match=why):
            anyio.run(Keys(url).load)
        assert asked == ["/keys"]


def test_an_issuer_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr("hpcagent.mcp.jwks.FETCH_S", 0.2)
    until = threading.Event()

    def answer(n: int) -> Any:
        until.wait(30)
        return 200, {}, b""

    with keys_at(answer) as (url, _):
        with pytest.raises(BadInput, match="TimeoutError"):
            anyio.run(Keys(url).load)
        until.set()


def test_a_weak_key_is_no_key(tmp_path):
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [jwk(weak, "RS256", "weak")]}))
    with pytest.raises(BadInput, match="no key for"):
        anyio.run(Keys(str(tmp_path / "jwks.json")).load)


def test_a_file_of_keys_that_others_may_write_is_refused(tmp_path):
    (tmp_path / "jwks.json").write_text(json.dumps(key_set()))
    (tmp_path / "jwks.json").chmod(0o666)
    with pytest.raises(BadInput, match="decide who may call"):
        anyio.run(Keys(str(tmp_path / "jwks.json")).load)


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.org/keys",
        "ftp://x/y",
        "file:///etc/passwd",
        "https://",
        "https://a:b@x.org/",
        "http://127.0.0.1.x.org/",
        "https://x:0/",
        "https://[::1",
    ],
)
def test_keys_come_by_https_or_from_this_machine(url):
    with pytest.raises(BadInput, match="https"):
        require_safe_url(url, "--jwks")
    assert require_safe_url("http://[::1]:80/keys", "--jwks") and require_safe_url("https://x.org/keys", "--jwks")
