"""A campaign that a client has written: data only, which names no code and no file of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from hpcagent.campaign.decisions import policy_of
from hpcagent.campaign.loading import list_configs
from hpcagent.campaign.record import Campaign
from hpcagent.catalog import app_names
from hpcagent.errors import BadInput, in_brief
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.model.base import parse_toml
from hpcagent.policies.base import policy_names
from hpcagent.replays.whatif import policy_choice
from hpcagent.workspace.only_data import check_only_data

__all__ = [
    "as_data",
    "check_changes",
    "check_options",
    "check_policy",
    "check_values",
    "is_name",
    "names_path",
    "packaged_campaign",
]

LONGEST = 100_000
DEEPEST = 16  # levels of a value among the changes; a campaign has four
# What these name lies on this machine or is code: a calculator, a folder of results, a cache.
REFUSED = ("settings", "cache", "earlier", "site")
# Tables in which a word may name a class: there no word has a colon.
CODE = ("policy", "sweep", "until")
NAME = re.compile(r"[A-Za-z_][\w.-]{0,99}(@[\w.+-]{1,40})?")


def is_name(text: str) -> bool:
    """Whether a text is a name, not a TOML.

    Example:
        >>> is_name("lj_tuning"), is_name('app = "lj_argon"')
        (True, False)
    """
    return len(text) <= 200 and "=" not in text and "\n" not in text


def packaged_campaign(name: str) -> Path:
    """The file of a packaged campaign.

    Raises:
        NotAllowed: There is none of that name.
    """
    known = list_configs()
    if name not in known:
        raise NotAllowed(
            "contract",
            "there is no packaged campaign of that name",
            field="campaign",
            value=name,
            allowed=f"{', '.join(known)}, or the text of a campaign's TOML",
            do="name one of these, or write the TOML itself",
        )
    return known[name]


def as_data(
    text: str, changes: Mapping[str, Any], registered: Callable[[str], bool] = lambda name: False
) -> tuple[str, str]:
    """The TOML of a campaign as it is to be run, and the name of its app, once both are seen to be data only.

    Args:
        text: The TOML.
        changes: Dotted key -> value; each is checked as if it stood there.
        registered: Whether a name is that of a registered tool, which is an app as well.

    Raises:
        NotAllowed: It is no TOML, or it names code or a file.
    """
    if len(text) > LONGEST:
        raise _refused("campaign", f"({len(text)} characters)", f"{LONGEST} characters at most")
    try:
        table = parse_toml(text, "campaign")
    except BadInput as error:
        raise NotAllowed("contract", error.message, field="campaign", do="correct the TOML") from None
    named = table.get("app")
    tool = isinstance(named, str) and NAME.fullmatch(named) is not None and registered(named.partition("@")[0])
    _check({key: value for key, value in table.items() if not (tool and key == "app")})
    check_changes(changes)
    app = changes.get("app", table.get("app"))
    if app is None:
        raise NotAllowed(
            "contract",
            "the campaign has no app",
            field="app",
            allowed="a name of list_apps",
            do='write app = "NAME" at the top of the TOML',
        )
    table.setdefault("name", str(app).partition("@")[0])
    return tomli_w.dumps(table), str(app)


def check_changes(changes: Mapping[str, Any]) -> None:
    """Check changes of a campaign, dotted key -> value, as if they stood in its TOML.

    Raises:
        NotAllowed: One names code or a file.
    """
    for key, value in changes.items():
        if key.count(".") > DEEPEST or _is_deep(value):
            raise _refused("changes", key[:80], f"keys and values nested at most {DEEPEST} deep")
        first, *rest = key.split(".")
        for name in reversed(rest):
            value = {name: value}
        _check({first: value})


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, Mapping | list | tuple)
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
    return bool(level)


def check_values(campaign: Campaign, *, known: Mapping[str, Any] | None = None) -> None:
    """Check the values that a campaign's runs are to have, by what its app takes them for.

    Args:
        campaign: The campaign.
        known: Fixed values that it was let through with: those that are the same are not checked again.

    Raises:
        NotAllowed: One names a file of this machine.
    """
    choices = [{p.name: one} for p in campaign.search.parameters if not p.files for one in p.choices]
    reference = [] if campaign.reference is None else [campaign.reference.params]
    fixed = {name: value for name, value in campaign.fixed.items() if (known or {}).get(name) != value}
    for params in (fixed, *campaign.points, *reference, *choices):
        check_only_data(campaign.app, params, {})


def check_options(campaign: Campaign) -> None:
    """Have a campaign's policy made, as its coordinator will: what it does not take is refused at once.

    One of somebody's own, or with a class of somebody's own, is code, which is imported where it runs.

    Raises:
        NotAllowed: It has no such option, or does not take its value or the objective.
    """
    if ":" in campaign.policy.name or names_path(campaign.policy.options):
        return
    try:
        policy_of(campaign)
    except (BadInput, TypeError, ValueError) as error:
        raise NotAllowed(
            "contract",
            f"the policy {campaign.policy.name} does not take it: {getattr(error, 'message', error)}",
            field="policy",
            value=_short(campaign.policy.options),
            do="correct its options and ask again; nothing was run",
        ) from None


def check_policy(spec: str) -> None:
    """Check a policy of a replay, `NAME` or `NAME:key=value,...`.

    Raises:
        NotAllowed: It is none of `policy_names`, or an option names code.
    """
    try:
        choice, _ = policy_choice(spec)
    except BadInput as error:
        raise NotAllowed("contract", error.message, field="policies", value=spec) from None
    _check_name(choice.name, "policies")
    for path, word in _words(choice.options, "policies"):
        _check_word(path, word)


def _check(table: Mapping[str, Any]) -> None:
    for key in REFUSED:
        if key in table:
            raise NotAllowed(
                "contract",
                f"a campaign that is given as a text cannot set {key}",
                field=key,
                value=_short(table[key]),
                allowed="no files, folders, settings and sites of its own",
                do="leave it out; the site is an argument of the call"
                if key == "site"
                else "leave it out, or have a person start such a campaign by `hpcagent workspace start`",
            )
    if "app" in table:
        _check_app(table["app"])
    policy = table.get("policy")
    name = policy.get("name") if isinstance(policy, Mapping) else policy
    if name is not None:
        _check_name(name, "policy.name")
    for key in CODE:
        for path, word in _words(table.get(key), key):
            _check_word(path, word)
    for key in set(table) - {*CODE, "description", "name"}:
        for path, word in _words(table[key], key):
            if key == "fixed" and word.startswith("artifact:") and path.count(".") == 1:
                continue  # a file of a run: whether there is one that the caller may read is seen where it is read
            if word.startswith(("/", "~", "artifact:", "file:")) or ".." in word.split("/") or "\0" in word:
                raise _refused(
                    path, word, "no path but artifact:RUN/PATH, a file of a run, among the values of fixed"
                )


def _check_app(app: Any) -> None:
    """An app by the name that it has everywhere."""
    if not isinstance(app, str) or not NAME.fullmatch(app) or app.partition("@")[0] not in app_names():
        raise NotAllowed(
            "contract",
            "there is no app of that name",
            field="app",
            value=_short(app),
            allowed="a name of list_apps, or NAME@VERSION",
            do="call list_apps",
        )


def _check_name(name: Any, field: str) -> None:
    known = policy_names()
    if name not in known:
        raise NotAllowed(
            "contract",
            "there is no policy of that name",
            field=field,
            value=_short(name),
            allowed=", ".join(known),
            do="name one of these",
        )


def _check_word(path: str, word: str) -> None:
    """Words of a policy's options, and of what ends a campaign, may name classes: none of somebody's own."""
    if ":" in word or "/" in word or ("." in word and not _number(word)):
        raise _refused(path, word, "a plain word: neither a module nor a file")


def _short(value: Any) -> str:
    return value[:200] if isinstance(value, str) else in_brief(value)


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _words(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text in a value, keys too, and where it stands."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield path, str(key)
            yield from _words(one, f"{path}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for i, one in enumerate(value):
            yield from _words(one, f"{path}[{i}]")


def names_path(value: Any) -> bool:
    """Whether a word among plain data is the path of a class, `package.module:Class`."""
    return any(":" in word for _, word in _words(value, ""))


def _refused(field: str, value: Any, allowed: str) -> NotAllowed:
    return NotAllowed(
        "contract",
        f"{field} is not allowed in a campaign that is given as a text",
        field=field,
        value=_short(value),
        allowed=allowed,
        do="correct it and ask again; nothing was run",
    )
