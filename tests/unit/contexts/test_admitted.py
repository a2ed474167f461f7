"""Secrets, and what is no plain data, do not come into contexts."""

from __future__ import annotations

import math

import pytest

from hpcagent.contexts import Contexts, Events, put, record_call
from hpcagent.contexts.admitted import admitted, secret_in, unsecret
from hpcagent.errors import BadInput

# In the forms that the issuers document; none of them opens anything.
SECRETS = [
    "postgresql://reader:hunter2x@db.example.org/catalysts",
    "Bearer abcdefghijklmnop0123",
    "Authorization: Basic dXNlcjpwYXNzd29yZA==",
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1" * 15,
    "glpat-" + "x1Y2" * 5,
    "sk-proj-" + "Ab3d" * 8,
    "xoxb-1234567890-abcdef",
    "AKIA" + "ABCDEFGH12345678",
    "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw",
    "hf_" + "AbCd" * 8,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==",
    "https://store.example.org/run47.json?X-Amz-Signature=0a1b2c3d4e5f",
    "https://example.org/cb#access_token=abcdef123456",
    "host=db user=reader password=hunter2x",
    '{"api_key": "abcd1234efgh"}',
]
PLAIN = [
    "https://example.org/results/47.json?version=3&page=2",
    "file:///runs/j7/result.json",
    "globus-compute://endpoint/runs/7/result.json",
    "CC(=O)Oc1ccccc1C(=O)O",
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "the model used 4096 tokens; token: 17",
    "see mailto:ada@example.org, or ssh://ada@login.example.org:22/home",
    "basic oxides adsorb CO2",
    "a ratio of 3:4@300 K",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_refused_wherever_it_stands_and_never_repeated(secret, tmp_path):
    context = Contexts(tmp_path).create("c")
    events = Events(tmp_path / "events")
    for go in (
        lambda: put("shared", "note", secret),
        lambda: put("shared", "note", {"deep": [1, {"er": f"see {secret} there"}]}),
        lambda: put("shared", "note", {secret: 1}),
        lambda: record_call("c1", "app", "1.0.0", {"x": secret}),
        lambda: record_call("c1", "app", "1.0.0", {"x": 1}, result=secret),
        lambda: context.write(put("shared", "a", 1), by=secret, version=1),
        lambda: events.tell("my_event", {"url": secret}, owner="ada"),
        lambda: events.subscribe("my_event", owner="ada", where={"url": secret}),
        lambda: events.subscribe("my_event", owner=secret),
    ):
        with pytest.raises(BadInput) as refused:
            go()
        assert secret not in str(refused.value) and secret not in repr(refused.value.details)
    assert secret not in "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))
    assert secret not in unsecret(f"it said {secret}")


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_may_stand(text):
    assert secret_in(text) == ""
    assert admitted({"note": text}, "shared") == {"note": text}


@pytest.mark.parametrize(
    "name",
    ["password", "api_key", "apiKey", "Authorization", "db-password", "GITHUB_TOKEN", "accessToken", "cookie"],
)
def test_a_name_of_a_secret_is_refused_with_a_text(name):
    for part in ({name: "abc"}, {"x": {name: {"inner": ["abc"]}}}):
        with pytest.raises(BadInput, match="by its name it is a secret"):
            admitted(part, "shared")
    with pytest.raises(BadInput, match="by its name it is a secret"):
        put("shared", name, "abc")


@pytest.mark.parametrize(
    "table",
    [
        {"max_tokens": 4096},
        {"token": 3},
        {"auth_scope": "read"},
        {"password_name": "vault/db"},
        {"password": "(hidden)"},
    ],
)
def test_a_number_or_the_name_of_a_secret_may_stand(table):
    assert admitted(table, "shared") == table


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "is not finite"),
        (-math.inf, "is not finite"),
        (10**400, "hundreds of digits"),
        ({1: 2}, "a name is a text"),
        ({"": 2}, "is no name"),
        ({"a" * 201: 2}, "is no name"),
        ({1, 2}, "is a set; plain data is"),
        (b"abc", "is a bytes; plain data is"),
        (object, "is a type; plain data is"),
        ("a\x1b[31mb", "is not allowed in a text"),
        ("x" * 20_000, "at most 16.0 KiB"),
        ([0] * 20_000, "at most 16.0 KiB"),
        (["x" * 9000, "x" * 9000], "at most 16.0 KiB"),
    ],
)
def test_what_is_no_plain_data_of_bounded_size_is_refused(value, said):
    with pytest.raises(BadInput, match=said):
        admitted({"a": value}, "shared")


def test_nesting_has_an_end():
    value = 1
    for _ in range(100):
        value = [value]
    with pytest.raises(BadInput, match="nested more than 32 deep"):
        admitted(value, "shared.a")


def test_long_texts_are_searched_in_a_moment():
    for text in (
        "eyJ" + "a" * 16_000,
        "a:" * 8_000,
        "://" * 5_000,
        "eyJ-" * 4_000,
        "password" * 2_000,
        "?key" * 4_000,
    ):
        assert secret_in(text) == ""
