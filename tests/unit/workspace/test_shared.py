"""What a workspace shares: the rights of a role decide on contexts and resources; who may tell which event."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcagent.contexts import put
from hpcagent.contexts.events import NAMES
from hpcagent.errors import BadInput, NotPermitted
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import ROLES, Rights, Rules
from hpcagent.resources import Field, Resource, Resources
from hpcagent.store.journal import read_events
from hpcagent.workspace.client import Workspace
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.shared import TOLD_BY_PEOPLE, context_permit, opened_resources

RULES = """
name = "ws"
default_site = "threads"

[people]
pia = { role = "planner" }
exe = { role = "executor" }
eve = { role = "viewer" }
kim = { role = "curator" }
lou = { role = "auditor" }
dan = { role = "dft_only" }
nil = { role = "nobody" }

[roles]
curator = { may = ["read", "write"] }
auditor = { may = ["read"] }
dft_only = { may = ["read", "write"], resources = ["dft_*"] }
nobody = { may = [] }
"""
CU = {
    "metal": "Cu",
    "support": "ZnO",
    "adsorbate": "CO",
    "adsorption_energy": -0.5,
    "reference": "doi:10.0000/x",
    "method": "measured",
}
ENTRY = {"experiment_id": "e1", "inputs": {"catalyst": "Cu"}, "output_uri": None}


def in_role(folder: Path, role: str, **roles: Rights) -> Resources:
    return opened_resources(folder, "ada", role, Rules(roles=roles))


# -- rights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "roles", "may"),
    [
        ("admin", {}, {"read", "add", "replace", "expire", "snapshot"}),
        ("planner", {}, {"read", "add", "replace"}),
        ("executor", {}, {"read", "add"}),
        ("viewer", {}, {"read"}),
        ("curator", {"curator": Rights(may=("read", "write"))}, {"read", "add", "replace"}),
        ("auditor", {"auditor": Rights(may=("read",))}, {"read"}),
        ("scribe", {"scribe": Rights(may=("write",))}, {"add", "replace"}),
        ("keeper", {"keeper": Rights(may=("read", "manage"))}, {"read", "expire", "snapshot"}),
        # By its rights, whatever its name makes one think of.
        ("reader", {"reader": Rights(may=("read", "write"))}, {"read", "add", "replace"}),
        ("owner", {"owner": Rights(may=("read",))}, {"read"}),
        ("planner", {"planner": Rights(may=("read",))}, {"read"}),
        ("viewer", {"viewer": Rights(may=("read", "write"))}, {"read", "add", "replace"}),
        ("dft_only", {"dft_only": Rights(may=("read", "write"), resources=("dft_*",))}, set()),
        ("unheard_of", {}, set()),
    ],
)
def test_the_rights_of_a_role_decide_what_it_does_with_a_table(role, roles, may, tmp_path):
    first = in_role(tmp_path, "admin").database().add(CU)
    resources = in_role(tmp_path, role, **roles)
    table = resources.database()
    calls = {
        "read": table.query,
        "add": lambda: table.add(CU, run_id="r"),
        "replace": lambda: table.replace(first.id, CU, run_id="r"),
        "expire": resources.expire,
        "snapshot": lambda: resources.snapshot("catalyst_db"),
    }
    for action, call in calls.items():
        if action in may:
            call()
        else:
            with pytest.raises(NotPermitted, match=rf"ada \({role}\) may not {action} in catalyst_db; "):
                call()


def test_a_refusal_says_which_right_is_missing_or_which_names_there_are(tmp_path):
    in_role(tmp_path, "admin").database().add(CU)
    with pytest.raises(NotPermitted, match="needs the right 'write', and the role viewer has read"):
        in_role(tmp_path, "viewer").database().add(CU)
    narrow = {"narrow": Rights(may=("read", "write"), resources=("dft_*", "lab_*"))}
    with pytest.raises(NotPermitted, match=r"uses the resources dft_\*, lab_\* only"):
        in_role(tmp_path, "narrow", **narrow).database().query()
    in_role(tmp_path, "narrow", **narrow).objects().put("a.json", {"x": 1})
    in_role(tmp_path, "narrow", **narrow).notebook().append(ENTRY)


def test_nobody_changes_what_is_append_only_whatever_the_rights_are(tmp_path):
    frozen = Resource(
        identity={"name": "frozen", "type": "object_store"},
        access={"access": "append", "permissions": {"owner": ["read", "add"]}},
        content={"format": "json_or_file"},
        storage={"backend": "files"},
    )
    Resources.open(tmp_path, caller="ada", role="owner", define=[frozen]).objects("frozen").put("a.json", {"x": 1})
    admin = in_role(tmp_path, "admin")
    with pytest.raises(NotPermitted, match=r"nobody may \(access = 'append'\)"):
        admin.objects("frozen").put("a.json", {"x": 2}, replace=True)
    with pytest.raises(NotPermitted, match="nobody may"):
        admin.expire()


def test_a_resource_of_ones_own_is_used_by_rights_and_name_too(tmp_path):
    own = Resource(
        identity={"name": "barriers", "type": "database"},
        access={"permissions": {"surface_team": ["read", "add"]}},
        content={"format": "table", "fields": [Field(name="metal", type="string")]},
        storage={"backend": "sqlite"},
    )
    Resources.open(tmp_path, caller="ada", role="surface_team", define=[own]).database("barriers").add(
        {"metal": "Cu"}
    )
    curator = Rights(may=("read", "write"), resources=("barriers",))
    table = in_role(tmp_path, "curator", curator=curator).database("barriers")
    table.add({"metal": "Pt"})
    assert table.query().total == 2
    with pytest.raises(NotPermitted, match="may not add in barriers"):
        in_role(tmp_path, "viewer").database("barriers").add({"metal": "Au"})


@pytest.mark.parametrize(("role", "allowed"), [(name, rights.may) for name, rights in ROLES.items()])
def test_contexts_are_read_and_written_by_rights(role, allowed):
    permit = context_permit("ada", role, Rules())
    for action in ("read", "write"):
        if action in allowed:
            permit(action, "contexts")
        else:
            with pytest.raises(NotPermitted, match=f"needs the right '{action}'"):
                permit(action, "contexts")


# -- through the service --------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    Folder(folder).create()
    (folder / "workspace.toml").write_text(RULES)
    return folder


@pytest.fixture
def core(root: Path) -> Iterator[Core]:
    one = Core(root)
    yield one
    one.close()


def as_(core: Core, name: str = "") -> Any:
    return core.caller(os.getuid(), name)


def told_to(core: Core, name: str, subscription: str) -> list[tuple[str, dict[str, Any]]]:
    found = core.notifications(as_(core, name), subscription_id=subscription)
    return [(one["event"], {k: v for k, v in one["payload"].items() if k != "timestamp"}) for one in found]


def subscribed(core: Core, name: str, *events: str) -> str:
    return str(core.subscribe(as_(core, name), events=list(events))["subscription_id"])


@pytest.mark.slow
def test_a_viewer_reads_contexts_and_writes_none_and_a_custom_role_counts_by_its_rights(root):
    admin = Workspace(root)
    try:
        heard = admin.subscribe("on_context_update")["subscription_id"]
        admin.contexts().create("study", intent="a better catalyst")
        metal = put("shared", "metal", "Cu")
        for name in ("eve", "lou"):
            contexts = Workspace(root, as_=name).contexts()
            assert contexts.ids() == ("study",) and contexts.view("study").read().version == 1
            opened = contexts.open("study")
            assert opened.read().version == 1
            for write in (
                lambda opened=opened: opened.write(metal, by="x", version=1),
                lambda opened=opened: opened.change(lambda _: metal, by="x"),
                lambda contexts=contexts: contexts.create("other"),
                opened.repair,
            ):
                with pytest.raises(NotPermitted, match="needs the right 'write'"):
                    write()
        assert Workspace(root, as_="kim").contexts().open("study").write(metal, by="kim", version=1).version == 2
        blind = Workspace(root, as_="nil").contexts()
        for read in (blind.ids, lambda: blind.view("study"), lambda: blind.open("study")):
            with pytest.raises(NotPermitted, match="needs the right 'read'"):
                read()
        assert not (root / "contexts" / "other.jsonl").exists()
        versions = [n["payload"]["version"] for n in admin.notifications(heard)]
        assert versions == [1, 2]
    finally:
        admin.end(runs=True)


@pytest.mark.slow
def test_every_change_of_a_resource_is_told_to_those_who_may_read_it_and_to_no_others(root):
    admin = Workspace(root)
    try:
        ears = {n: Workspace(root, as_=n) for n in ("eve", "lou", "dan", "nil")}
        heard = {n: w.subscribe("on_resource_modified")["subscription_id"] for n, w in ears.items()}
        kim = Workspace(root, as_="kim").resources()
        row = kim.database().add(CU, run_id="run-1")
        kim.database().replace(row.id, {**CU, "adsorption_energy": -0.6})
        stored = kim.objects().put("a.json", {"x": 1})
        kim.objects().put("a.json", {"x": 1})  # the same content: nothing has changed
        kim.notebook().append(ENTRY)
        kim.tell("catalyst_db", "looked_through", pages=3)  # an event of one's own is no change
        everything = [
            ("catalyst_db", "added", row.id),
            ("catalyst_db", "replaced", row.id),
            ("dft_results", "added", "a.json"),
            ("lab_notebook", "appended", "1"),
        ]
        got = {
            n: [
                (p["resource"], p["action"], p["item"])
                for p in (one["payload"] for one in w.notifications(heard[n]))
            ]
            for n, w in ears.items()
        }
        assert got["eve"] == got["lou"] == everything
        assert got["dan"] == [("dft_results", "added", "a.json")]
        assert got["nil"] == []
        first, *_ = ears["eve"].notifications(heard["eve"])
        assert first["payload"]["by"] == "kim" and first["payload"]["run_id"] == "run-1"
        assert first["payload"]["sha256"] == row.sha256
        third = ears["dan"].notifications(heard["dan"])[0]["payload"]
        assert third["sha256"] == stored.sha256 and third["version"] == 1
    finally:
        admin.end(runs=True)


def test_what_expires_is_told_as_well(core, root):
    mine = subscribed(core, "", "on_resource_modified")
    owner = as_(core).name

    def announce(name: str, at: int) -> None:
        core.modified(as_(core), resource=name, at=at)

    late = [1_000_000_000.0]
    old = Resources.open(root / "resources", caller=owner, role="owner", clock=lambda: late[0], announce=announce)
    old.objects().put("a.json", {"x": 1})
    late[0] += 91 * 86400.0
    old.expire()
    assert [(p["action"], p["item"]) for _, p in told_to(core, "", mine)] == [
        ("added", "a.json"),
        ("expired", "a.json"),
    ]


def test_a_change_is_told_as_the_history_has_it_and_by_who_has_made_it(core, root):
    places: list[int] = []
    kim = Resources.open(
        root / "resources", caller="kim", role="owner", announce=lambda name, at: places.append(at)
    )
    kim.database().add(CU)
    (at,) = places
    line = json.loads((root / "resources/catalyst_db/history.jsonl").read_bytes()[at:].splitlines()[0])
    assert line["event"] == "added"
    assert core.modified(as_(core, "kim"), resource="catalyst_db", at=at)["action"] == "added"
    with pytest.raises(BadInput, match="by kim, not by pia"):
        core.modified(as_(core, "pia"), resource="catalyst_db", at=at)
    for wrong in (at + 1, 0, 10**9, -1, True, "0"):  # 0: the line that says that it was made
        with pytest.raises(BadInput, match=r"no change at byte|must be a place"):
            core.modified(as_(core, "kim"), resource="catalyst_db", at=wrong)
    with pytest.raises(BadInput, match="has no resource"):
        core.modified(as_(core, "kim"), resource="../contexts", at=0)


def test_a_change_is_told_whatever_its_item_is_called(core, root):
    """A long name of a session, and a key that looks like a secret, which stands in no event."""
    mine = subscribed(core, "", "on_resource_modified")
    own = Resource(
        identity={"name": "notes", "type": "object_store"},
        access={"permissions": {"owner": ["read", "add"]}},
        content={"format": "json_or_file"},
        storage={"backend": "files", "persistence": "session"},
    )
    session = "s" * 200
    resources = Resources.open(
        root / "resources",
        caller=as_(core).name,
        role="owner",
        session=session,
        define=[own],
        announce=lambda name, at: core.modified(as_(core), resource=name, at=at, session=session),
    )
    for key in ("a.json", "token=abcdefgh12.json"):
        resources.objects("notes").put(key, {"x": 1})
    told = [p for _, p in told_to(core, "", mine)]
    assert [p["item"] for p in told] == ["a.json", "(hidden: a password)"]
    assert {p["session"] for p in told} == {session}


def test_a_change_told_twice_sets_off_a_trigger_once(root):
    (root / "triggers.toml").write_text(
        '[[triggers]]\nname = "look"\nwhen = "on_resource_modified"\nwhere = {resource = "catalyst_db"}\n'
        'then = {tool = "oscillator", arguments = {max_steps = 20}}\n'
    )
    core = Core(root)
    places: list[int] = []
    kim = Resources.open(
        root / "resources", caller="kim", role="owner", announce=lambda name, at: places.append(at)
    )
    kim.database().add(CU)
    for _ in range(2):  # the service had ended under the request, and it came again
        core.modified(as_(core, "kim"), resource="catalyst_db", at=places[0])
        core.look()
    assert core._triggers is not None
    assert [fired.state for fired in core._triggers.history()] == ["started"]
    core.close()


def test_an_event_of_ones_own_that_would_look_like_a_change_is_refused(tmp_path):
    resources = in_role(tmp_path, "admin")
    resources.database().add(CU)
    with pytest.raises(BadInput, match="name your own event otherwise"):
        resources.tell("catalyst_db", "added", item="none")


# -- tell -----------------------------------------------------------------------------------------

PAYLOADS = {
    "on_message": {"text": "look at run 7"},
    "on_comment_added": {"on": "r-1", "text": "odd"},
    "on_tool_registered": {"tool": "mine", "version": "1.0.0"},
    "on_tool_deprecated": {"tool": "mine", "version": "1.0.0"},
    "on_auth_expiring": {"service": "globus", "expires_at": "2027-01-01T00:00:00Z"},
    "new_promising_catalyst": {"catalyst": "Cu-ZnO"},
}


@pytest.mark.parametrize("event", PAYLOADS)
def test_people_tell_messages_tools_and_events_of_their_own(core, event):
    heard = {name: subscribed(core, name, event) for name in ("pia", "eve", "kim")}
    said = core.tell(as_(core, "pia"), event=event, payload=PAYLOADS[event], to="eve")
    assert said["event"] == event and said["to"] == ["eve"]
    whole = [(event, {**PAYLOADS[event], "by": "pia"})]
    assert told_to(core, "pia", heard["pia"]) == told_to(core, "eve", heard["eve"]) == whole
    assert told_to(core, "kim", heard["kim"]) == []


@pytest.mark.parametrize("event", sorted(set(NAMES) - set(TOLD_BY_PEOPLE)))
def test_what_the_service_knows_it_tells_alone(core, event):
    payload = dict.fromkeys(NAMES[event], "x")
    mine = subscribed(core, "", event)
    with pytest.raises(NotAllowed, match="told by the workspace's service only") as refused:
        core.tell(as_(core), event=event, payload=payload)
    assert refused.value.field == "event" and "on_message" in refused.value.allowed
    assert told_to(core, "", mine) == []
    assert [e["field"] for e in read_events(core.folder.journal) if e["event"] == "refused"] == ["event"]


@pytest.mark.parametrize(
    ("who", "event", "payload", "to", "said"),
    [
        ("eve", "on_message", {"text": "x"}, (), "the role viewer, which may not write"),
        ("pia", "on_messages", {"text": "x"}, (), "did you mean 'on_message'"),
        ("pia", "on_events_missed", {"count": 1}, (), "is no event"),
        ("pia", "on_message", {}, (), "has no 'text'"),
        ("pia", "on_message", ["text"], (), "the payload is a table"),
        ("pia", "on_message", {"text": "x", "by": "kim"}, (), "by whom it is told"),
        ("pia", "on_message", {"text": "x"}, "kym", "did you mean 'kim'"),
        ("pia", "on_message", {"text": "x"}, ["kim", 3], "is nobody of this workspace"),
        ("pia", "on_message", {"text": "Bearer abcdefghijklmnop"}, (), "must not stand in any record"),
        ("pia", 7, {}, (), "is no name of an event"),
    ],
)
def test_what_cannot_be_told_is_refused_with_what_can(core, who, event, payload, to, said):
    before = core.events.log.last()
    with pytest.raises(BadInput, match=said):
        core.tell(as_(core, who), event=event, payload=payload, to=to)
    assert core.events.log.last() == before


def test_everybody_is_everybody_whom_the_workspace_knows(core):
    heard = {name: subscribed(core, name, "on_message") for name in ("eve", "nil", "kim")}
    core.tell(as_(core, "pia"), event="on_message", payload={"text": "tea"}, to="*")
    assert all(len(told_to(core, name, one)) == 1 for name, one in heard.items())


def test_nobodys_key_hides_the_event_of_another(root):
    (root / "triggers.toml").write_text(
        '[[triggers]]\nname = "look"\nwhen = "new_promising_catalyst"\n'
        'then = {tool = "oscillator", arguments = {max_steps = 20}}\n'
    )
    core = Core(root)
    for name in ("pia", "kim", "pia"):
        core.tell(as_(core, name), event="new_promising_catalyst", payload={"catalyst": "Cu"}, key="the-one")
    core.look()
    assert core._triggers is not None
    assert [fired.key for fired in core._triggers.history()] == ["look:pia: the-one", "look:kim: the-one"]
    core.close()


@pytest.mark.slow
def test_a_person_tells_through_the_service(root):
    workspace = Workspace(root, as_="pia")
    try:
        mine = Workspace(root, as_="eve").subscribe("on_comment_added", where={"on": "r-1"})["subscription_id"]
        for on in ("r-1", "r-2"):
            workspace.tell("on_comment_added", {"on": on, "text": "odd"}, to=["eve"])
        found = Workspace(root, as_="eve").notifications(mine)
        assert [one["payload"]["on"] for one in found] == ["r-1"]
        with pytest.raises(NotAllowed, match="service only"):
            workspace.tell("on_job_complete", {"job_id": "r-1", "result_url": "x"})
    finally:
        Workspace(root).end(runs=True)
