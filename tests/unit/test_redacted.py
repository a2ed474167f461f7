"""Secrets are taken out of texts by their value and by what they look like; what is none stays."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.contexts.admitted import secret_in
from hpcagent.redacted import (
    _secrets_of,
    clean_environment,
    is_credential,
    looks_secret,
    redacted,
    redacted_bytes,
    redacted_data,
    secret_values,
)
from hpcagent.shown import masked

# The example token of RFC 7515, A.1.
JWT = (
    "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19"
    "yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
)
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabc+/=\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"slurm: {JWT} refused", JWT),
        (f"Authorization: Bearer {JWT}", JWT),
        ("Authorization: Bearer 4f3a9c8e7b6d5a41", "4f3a9c8e7b6d5a41"),
        ("Authorization: Basic YW5uOnBhc3N3b3JkMQ==", "YW5uOnBhc3N3b3JkMQ"),
        ("postgresql://ann:s3cr3t@db.example.org/x", "s3cr3t"),
        ("https://oauth2:glpat-AAAAAAAAAAAAAAAA1234@gitlab.example.org/a.git", "glpat-AAAAAAAAAAAAAAAA1234"),
        (f"the key:\n{KEY}\nend", "MIIEpAIBAAKCAQEA"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n(cut", "b3BlbnNzaC1rZXk"),
        ("password = hunter2-x", "hunter2-x"),
        ("mysql --password='my pass word'", "my pass word"),
        ('{"access_token": "abc123def"}', "abc123def"),
        ("AWS: AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("export HF=hf_abcdefghijklmnop0123", "hf_abcdefghijklmnop0123"),
    ],
)
def test_what_looks_like_a_credential_goes(text, secret):
    clean = redacted(text, secrets=())
    assert secret not in clean
    assert "(hidden)" in clean
    assert looks_secret(text)
    assert redacted(clean, secrets=()) == clean


@pytest.mark.parametrize(
    "text",
    [
        "Step 100 Temp 300 TotEng -4.62",
        "https://docs.lammps.org/fix_nve.html",
        "a bearer of tokens; basic set 6-31g; token count exceeded",
        "file:///scratch/ann/run:1/log.lammps",
        "ERROR: Unknown pair style (src/force.cpp:275)",
        "mail ann@example.org",
        "sha256:" + "ab" * 32,
        "0b9d7c1e-4c1a-5a53-9a0e-3f5f3a1c2d4e",
        "passed 12 of 13; the key of the table; monkey = 3",
    ],
)
def test_what_is_no_credential_stays(text):
    assert redacted(text, secrets=()) == text


def test_values_of_the_environment_go_wherever_they_stand(monkeypatch):
    for name in ("DB_PASSWORD", "MY_API_KEY", "SLURM_JWT", "SERVICE_DSN"):
        monkeypatch.setenv(name, f"Value+of/{name}")
    monkeypatch.setenv("SHORT_TOKEN", "1")
    monkeypatch.setenv("SSH_KEY_FILE", "/home/ann/.ssh/id")
    monkeypatch.setenv("AWS_PROFILE", "default")
    text = "a Value+of/DB_PASSWORD b 'Value+of/MY_API_KEY' Value+of/SLURM_JWT,Value+of/SERVICE_DSN 1 /home/ann/.ssh/id default"
    clean = redacted(text)
    assert clean == "a (hidden) b '(hidden)' (hidden),(hidden) 1 /home/ann/.ssh/id default"


def test_the_longer_of_two_secrets_goes_first():
    assert redacted("abcdef-ghijkl", secrets=["abcdef", "abcdef-ghijkl"]) == "(hidden)"
    assert secret_values({"A_TOKEN": "abcdef", "B_TOKEN": "abcdef-ghijkl"}) == ("abcdef-ghijkl", "abcdef")


def test_a_secret_of_several_lines_goes_line_by_line():
    value = "first-line-of-it\nsecond-line-of-it"
    values = secret_values({"SIGNING_KEY": value})
    assert redacted("it printed second-line-of-it only", secrets=values) == "it printed (hidden) only"


def test_names_of_credentials_are_known():
    yes = "GITHUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN SLURM_JWT GLOBUS_COMPUTE_CLIENT_SECRET DB_PASSWORD PGPASSWORD"
    yes += " OPENAI_API_KEY MY_KEY SSH_AUTH_SOCK secret_x VAULT_ADDR"
    no = "PATH HOME OMP_NUM_THREADS KEYBOARD MONKEY PATIENCE LANG SLURM_JOB_ID"
    assert all(map(is_credential, yes.split()))
    assert not any(map(is_credential, no.split()))


def test_data_of_any_depth_is_cleaned_in_names_and_values():
    data = {
        "log": [f"x {JWT}"],
        "auth_token": "abc",
        "n": 3,
        f"k {JWT}": None,
        "inner": {"password": "p", "ok": 1.5},
    }
    clean = redacted_data(data, secrets=())
    assert clean == {
        "log": ["x (hidden)"],
        "auth_token": "(hidden)",
        "n": 3,
        "k (hidden)": None,
        "inner": {"password": "(hidden)", "ok": 1.5},
    }


def test_a_clean_environment_keeps_a_list_and_ranks_need_more():
    environ = {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "2",
        "SLURM_PROCID": "3",
        "SLURM_JWT": JWT,
        "PMI_RANK": "3",
        "LD_PRELOAD": "/tmp/x.so",
        "PYTHONPATH": "/x",
        "MINE": "1",
    }
    assert clean_environment(environ) == {"PATH": "/bin", "OMP_NUM_THREADS": "2"}
    assert set(clean_environment(environ, ranks=True)) == {"PATH", "OMP_NUM_THREADS", "SLURM_PROCID", "PMI_RANK"}
    assert set(clean_environment(environ, allow=["MINE", "SLURM_JWT"])) == {"PATH", "OMP_NUM_THREADS", "MINE"}


PIECES = [
    *(
        "a-",
        "sk-",
        "ATG-",
        "-eyJaaaaaaaa",
        ".eyJaaaaaaaa",
        "eyJ",
        "xoxa-",
        "key_",
        "api_",
        "akia-",
        "A ",
        "\n",
        " ",
    ),
    *("-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN ", "PRIVATE KEY-----\n", "-----END RSA PRIVATE KEY-----"),
    *("password", "password=", "password='", 'password="', "secret:  ", "://a:", "://", "\nexport ", "A='\n"),
    *("token ", "token\t \n", "bearer/", "basic a", "'", "\x1b[", "\r", "&#a", "<", "A=\"'", "é-"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", PIECES)
def test_time_goes_with_the_length_of_the_text(piece):
    """Of 300 000 characters: time that went with their square would be hours (15 000 took 18 s)."""
    text = "key token secret sk- eyj private key " + (piece * 300_000)[:300_000]
    redacted(text, secrets=())
    redacted_bytes(text.encode(), secrets=())
    masked(text)
    secret_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "x-sk-abcdefghij0123456789 and -eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.c2ln",
        "sk-short sk-abcdefghij0123456789",
        f"{KEY}\n{KEY}",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----",
    ],
)
def test_what_begins_within_a_word_or_comes_again_goes_too(text):
    clean = redacted(text, secrets=())
    assert not any(part in clean for part in ("0123456789", "eyJzdWIi", "MIIEpAIB", "abc"))


def test_bytes_keep_their_length_and_lose_secrets():
    data = b"\x00\xff key Value+of/it \x00password=hunter2\x00\nshort_secret: abcd\n" + JWT.encode() + b"\xfe"
    clean = redacted_bytes(data, secrets=["Value+of/it"])
    assert len(clean) == len(data)
    assert clean.startswith(b"\x00\xff key (hidden)*** \x00password=*******\x00\nshort_secret: ****\n")
    assert not any(one in clean for one in (b"Value+of", b"hunter2", b"abcd\n", JWT.encode()))
    assert clean.endswith(b"\xfe")
    assert redacted_bytes(b"\x89PNG nothing here", secrets=()) == b"\x89PNG nothing here"


def test_a_program_that_prints_its_environment_leaves_no_secret_in_messages_and_records(tmp_path, monkeypatch):
    secret = base64.b64encode(b"the secret of the site").decode()
    monkeypatch.setenv("SITE_TOKEN", secret)
    app = ha.executable(
        ["sh", "-c", "echo SITE_TOKEN is $SITE_TOKEN {x}; exit 3"],
        parameters={"x": ha.Float(0, 1)},
        metrics={"a": ha.output.from_regex("a=(.*)", unit="1")},
    )
    campaign = ha.Campaign(app, ha.minimize("a"), until=ha.until.max_runs(2), policy="random", site="threads")
    try:
        results = ha.run(campaign, run_dir=tmp_path / "run").results
    except ha.errors.HpcAgentError as error:
        results = ()
        assert secret not in str(error)
    for result in results:
        assert result.failure is not None
        assert secret not in result.failure.message + result.failure.log_tail
    texts = [p for p in Path(tmp_path / "run").rglob("*") if p.suffix in (".json", ".jsonl", ".md", ".toml")]
    assert any("(hidden)" in p.read_text() for p in texts)
    assert [p for p in texts if secret in p.read_text()] == []
    json.dumps([str(p) for p in texts])


def test_a_variable_is_looked_at_once_and_a_new_one_at_once(monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "s3cr3t-value-1")
    assert "s3cr3t-value-1" in secret_values()
    looked = _secrets_of.cache_info().misses
    assert "s3cr3t-value-1" in secret_values() and _secrets_of.cache_info().misses == looked
    monkeypatch.setenv("MY_API_TOKEN", "s3cr3t-value-2")
    assert "s3cr3t-value-2" in secret_values() and "s3cr3t-value-1" not in secret_values()
    assert redacted("it is s3cr3t-value-2") == "it is (hidden)"
