"""Resources: roles, retention, provisioning, versions, digests, and several writers at once."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcagent.errors import BadInput, ContentChanged, NotPermitted, StoreFull
from hpcagent.resources import Caller, Database, Field, Range, Resource, Resources
from hpcagent.resources.place import Place
from hpcagent.resources.record import BUILT_IN, CATALYST_DB, DFT_RESULTS, LAB_NOTEBOOK

DAY = 86400.0
CU = {
    "metal": "Cu",
    "support": "ZnO",
    "adsorbate": "CO",
    "adsorption_energy": -0.5,
    "reference": "doi:10.0000/x",
    "method": "measured",
}
ENTRY = {
    "experiment_id": "e1",
    "inputs": {"catalyst": "Cu-ZnO", "adsorbate": "CO2"},
    "output_uri": "dft_results/a",
}


def changed(record: Resource, **parts) -> Resource:
    """A definition with other values in its parts: `storage={"retention_days": 1}`."""
    plain = record.model_dump()
    for part, values in parts.items():
        plain[part] = {**plain[part], **values}
    return Resource(**plain)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(folder, role="planner", **more) -> Resources:
    return Resources.open(folder, caller="anna", role=role, **more)


# Roles


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("owner", {"read", "add", "replace", "expire"}),
        ("planner", {"read", "add", "replace"}),
        ("executor", {"read", "add"}),
        ("reader", {"read"}),
        ("stranger", set()),
    ],
)
def test_a_role_may_do_what_the_record_permits_and_nothing_else(role, may, tmp_path):
    first = opened(tmp_path, "owner").database().add(CU)
    resources = opened(tmp_path, role)
    table = resources.database()
    actions = {
        "read": lambda: table.query(),
        "add": lambda: table.add(CU, run_id="r"),
        "replace": lambda: table.replace(first.id, CU, run_id="r"),
        "expire": lambda: resources.expire(),
    }
    for action, call in actions.items():
        if action in may:
            call()
        else:
            with pytest.raises(NotPermitted, match=rf"anna \({role}\) may not {action} in catalyst_db; .*owner"):
                call()


def test_an_executor_stores_results_and_can_neither_change_nor_remove_what_is_there(tmp_path):
    """A checklist had it read only and writing results at once: it adds, and names the run."""
    store = opened(tmp_path, "executor").objects()
    with pytest.raises(BadInput, match="without a run_id"):
        store.put("a.json", {"x": 1})
    assert store.put("a.json", {"x": 1}, run_id="run47").created_by == "anna (executor)"
    with pytest.raises(BadInput, match="is there already"):
        store.put("a.json", {"x": 2}, run_id="run48")
    with pytest.raises(NotPermitted, match="may not replace in dft_results; those who may: owner, planner"):
        store.put("a.json", {"x": 2}, run_id="run48", replace=True)
    assert store.get("a.json") == {"x": 1}


def test_what_several_steps_need_is_asked_before_the_first(tmp_path):
    opened(tmp_path, "executor").require(catalyst_db="add", dft_results="add", lab_notebook="add")
    with pytest.raises(NotPermitted, match="lab_notebook"):
        opened(tmp_path, "reader").require(catalyst_db="read", lab_notebook="add")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"access": {"permissions": {"planner": ("read",)}}}, "no role may add"),
        ({"access": {"access": "append"}}, "lets nobody do so"),
        ({"storage": {"backend": "jsonl"}}, "has the backend 'sqlite'"),
        ({"storage": {"retention_days": 0.0}}, "greater than 0"),
        ({"storage": {"target": "/x#y"}}, "only with it"),
        ({"identity": {"name": "../x"}}, "is no name of a resource"),
        ({"identity": {"name": 'x"; DROP TABLE rows; --'}}, "is no name of a resource"),
        ({"content": {"fields": ()}}, "has fields"),
    ],
)
def test_a_definition_that_contradicts_itself_is_refused(parts, said):
    with pytest.raises(BadInput, match=said):
        changed(CATALYST_DB, **parts)


def test_a_notebook_cannot_be_defined_so_that_entries_go_away():
    for parts in (
        {"storage": {"retention_days": 90.0}},
        {"access": {"access": "read_write"}},
        {"access": {"permissions": {"owner": ("read", "add", "expire")}}},
    ):
        with pytest.raises(BadInput):
            changed(LAB_NOTEBOOK, **parts)


def test_a_number_has_a_unit_and_a_text_has_none():
    with pytest.raises(BadInput, match="without a unit"):
        Field(name="x", type="number")
    with pytest.raises(BadInput, match="is a text and has the unit"):
        Field(name="x", type="string", unit="eV")
    with pytest.raises(BadInput, match="unknown unit"):
        Field(name="x", type="number", unit="furlong")


@pytest.mark.parametrize(("caller", "role"), [("", "planner"), ("a\nb", "planner"), ("a", ""), ("a", None)])
def test_a_caller_has_a_name_and_a_role(caller, role, tmp_path):
    with pytest.raises(BadInput):
        Resources.open(tmp_path, caller=caller, role=role)
    with pytest.raises(BadInput, match="give one of them"):
        Resources.open(tmp_path, caller=Caller("a", "reader"), role="owner")


def test_files_let_in_the_accounts_of_the_scope(tmp_path):
    scopes = {"user": (0o700, 0o600), "group": (0o770, 0o660), "all": (0o755, 0o644)}
    before = os.umask(0o027)
    try:
        for scope, (folder_mode, file_mode) in scopes.items():
            define = [changed(r, access={"auth_scope": scope}) for r in BUILT_IN]
            resources = opened(tmp_path / scope, define=define)
            resources.database().add(CU)
            resources.objects().put("a.json", {"x": 1})
            resources.notebook().append(ENTRY)
            for path in (tmp_path / scope).rglob("*"):
                mode = stat.S_IMODE(path.stat().st_mode) & 0o777
                assert mode == (folder_mode if path.is_dir() else file_mode), (path, oct(mode))
    finally:
        os.umask(before)


# Provisioning


def test_a_resource_is_made_on_first_use_once_and_says_who_made_it(tmp_path):
    clock = Clock()
    resources = opened(tmp_path / "new" / "deep", clock=clock)
    assert not resources.folder.exists()
    assert resources.database().query().total == 0
    made = resources.record("catalyst_db").provenance
    assert (made.created_by, made.created_at) == ("anna (planner)", clock.now)
    Resources.open(resources.folder, caller="bob", role="owner").database().add(CU)
    assert resources.record("catalyst_db").provenance.created_by == "anna (planner)"
    assert [e["event"] for e in resources.history("catalyst_db")] == ["provisioned", "added"]


def test_of_two_who_make_it_at_once_one_has_made_it_and_both_use_it(tmp_path, monkeypatch):
    real, others = Database.create, []

    def create(table):
        if not others:
            others.append(Resources.open(tmp_path, caller="bob", role="planner"))
            others[0].database().add(CU)
        real(table)

    monkeypatch.setattr(Database, "create", create)
    resources = opened(tmp_path)
    assert resources.database().query().total == 1
    assert resources.record("catalyst_db").provenance.created_by == "bob (planner)"
    assert [p.name for p in tmp_path.iterdir()] == ["catalyst_db"]


def test_one_who_may_only_read_makes_nothing(tmp_path):
    with pytest.raises(NotPermitted, match="is not there yet"):
        opened(tmp_path, "reader").database()
    assert list(tmp_path.iterdir()) == []


def test_a_static_resource_is_made_by_hand_only(tmp_path):
    static = changed(CATALYST_DB, lifecycle={"create_on_demand": False})
    assert static.provisioning == "static"
    with pytest.raises(BadInput, match=r"provision\('catalyst_db'\)"):
        opened(tmp_path, define=[static]).database()
    with pytest.raises(NotPermitted):
        opened(tmp_path, "executor", define=[static]).provision("catalyst_db")
    opened(tmp_path, define=[static]).provision("catalyst_db")
    assert opened(tmp_path, "executor").database().query().total == 0


def test_a_folder_keeps_its_definition(tmp_path):
    opened(tmp_path).database()
    opened(tmp_path, define=[CATALYST_DB])
    other = changed(CATALYST_DB, storage={"retention_days": 3.0})
    with pytest.raises(BadInput, match="another storage than is given now"):
        opened(tmp_path, define=[other])


def test_each_session_has_its_own_and_it_ends_with_it(tmp_path):
    scratch = changed(
        DFT_RESULTS,
        identity={"name": "scratch", "uri": "resource:scratch"},
        storage={"persistence": "session"},
    )
    with pytest.raises(BadInput, match="give session="):
        opened(tmp_path, define=[scratch]).objects("scratch")
    one, two = (opened(tmp_path, "owner", session=s, define=[scratch]) for s in ("one", "two"))
    one.objects("scratch").put("a.json", {"x": 1})
    assert two.objects("scratch").listed().total == 0
    with pytest.raises(NotPermitted):
        opened(tmp_path, "planner", session="one").end_session()
    (kept,) = one.end_session()
    assert json.loads((kept / "objects" / "a.json" / "000001").read_text()) == {"x": 1}
    assert one.objects("scratch").listed().total == 0
    assert "scratch" in two.provisioned


def test_a_proxy_stands_for_another_folder_with_the_permissions_of_both(tmp_path):
    opened(tmp_path / "group", "owner").database().add(CU)
    proxy = changed(
        CATALYST_DB,
        identity={"name": "group_db", "uri": "resource:group_db"},
        access={"access": "read", "permissions": {"planner": ("read",), "stranger": ("read",)}},
        storage={"backend": "proxy", "target": f"{tmp_path / 'group'}#catalyst_db"},
        content={"fields": ()},
    )
    mine = opened(tmp_path / "mine", define=[proxy])
    assert mine.record("group_db").provisioning == "proxy"
    assert mine.database("group_db").query({"metal": "Cu"}).total == 1
    with pytest.raises(NotPermitted, match="may not add in group_db"):
        mine.database("group_db").add(CU)
    with pytest.raises(NotPermitted, match="may not read in catalyst_db"):
        opened(tmp_path / "mine", "stranger", define=[proxy]).database("group_db").query()
    with pytest.raises(BadInput, match="which is not there"):
        opened(tmp_path, define=[changed(proxy, storage={"target": f"{tmp_path}/no#x"})]).database("group_db")


# Retention


def test_what_is_past_ninety_days_is_not_shown_and_expire_says_what_it_took_out(tmp_path):
    clock = Clock()
    resources = opened(tmp_path, "owner", clock=clock)
    old = resources.database().add(CU)
    kept = resources.objects().put("old.json", {"x": 1})
    resources.notebook().append(ENTRY)
    clock.now += 89.9 * DAY
    assert resources.database().query().total == 1 and resources.expire() == ()
    resources.database().add(CU | {"metal": "Pt"})
    clock.now += 0.2 * DAY
    page = resources.database().query()
    assert [r["metal"] for r in page] == ["Pt"] and (page.total, page.overdue) == (1, 1)
    with pytest.raises(BadInput, match=r"past its retention of 90 days"):
        resources.objects().get("old.json")
    gone = resources.expire()
    assert {(g.resource, g.item, g.sha256) for g in gone} == {
        ("catalyst_db", old.id, old.sha256),
        ("dft_results", "old.json", kept.sha256),
    }
    rows, folder = (next(g.archived for g in gone if g.resource == r) for r in ("catalyst_db", "dft_results"))
    assert json.loads(Path(rows).read_text())["metal"] == "Cu"
    assert json.loads((Path(folder) / "000001").read_text()) == {"x": 1}
    assert resources.database().query().overdue == 0 and resources.database().versions(old.id) == ()
    assert [e["item"] for e in resources.history("dft_results") if e["event"] == "expired"] == ["old.json"]
    assert resources.notebook().verify() == 1, "a notebook is kept"
    assert resources.expire() == ()


def test_a_resource_that_is_not_archived_is_deleted_and_that_is_recorded(tmp_path):
    clock = Clock()
    define = [
        changed(r, lifecycle={"archive": False}, storage={"retention_days": 1.0})
        for r in (CATALYST_DB, DFT_RESULTS)
    ]
    resources = opened(tmp_path, "owner", define=define, clock=clock)
    resources.database().add(CU)
    resources.objects().put("old.json", {"x": 1})
    clock.now += 2 * DAY
    assert [g.archived for g in resources.expire()] == [None, None]
    assert not list(tmp_path.rglob("archive")) and not (tmp_path / "dft_results" / "objects" / "old.json").exists()
    assert resources.history("catalyst_db")[-1]["event"] == "expired"


def test_a_new_version_begins_the_retention_anew(tmp_path):
    clock = Clock()
    table = opened(tmp_path, "owner", clock=clock).database()
    row = table.add(CU)
    clock.now += 80 * DAY
    table.replace(row.id, CU | {"adsorption_energy": -0.6})
    clock.now += 80 * DAY
    assert opened(tmp_path, "owner", clock=clock).expire() == ()
    assert table.query().items[0].version == 2


# The table


def test_rows_are_found_by_texts_and_by_ranges_in_any_unit(tmp_path):
    table = opened(tmp_path).database()
    energies = {"Cu": -0.5, "Pt": -1.5, "Au": -0.1, "Ni": -1.2}
    for metal, energy in energies.items():
        table.add(
            CU | {"metal": metal, "adsorption_energy": energy, "surface_area": None if metal == "Au" else 40.0}
        )
    # -1200 meV = -1.2 eV; both ends are in the range.
    found = table.query({"adsorption_energy": {"max": -1200, "unit": "meV"}}, order_by="adsorption_energy")
    assert [r["metal"] for r in found] == ["Pt", "Ni"]
    assert table.query({"metal": ["Cu", "Au"], "support": "ZnO"}).total == 2
    # A row without the number is in no range: not known is not 0. 40 m^2/g = 40 000 m^2/kg.
    assert table.query({"surface_area": {"min": 0, "max": 40_000, "unit": "m^2/kg"}}).total == 3
    assert table.query({"surface_area": Range(max=1.0, unit="m^2/g")}).total == 0


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"temperature": {"max": 600, "unit": "K"}}, "has no filter 'temperature'"),
        ({"metal = 'Cu' OR 1=1 --": "x"}, "has no filter"),
        ({"adsorption_energy": {"max": -1.2}}, "has no unit"),
        ({"adsorption_energy": {"max": -1.2, "unit": "nm"}}, "cannot be converted"),
        ({"adsorption_energy": -1.2}, "must be a range"),
        ({"adsorption_energy": {"unit": "eV"}}, "without min and max"),
        ({"adsorption_energy": {"min": 1, "max": 0, "unit": "eV"}}, "is above"),
        ({"adsorption_energy": {"min": float("nan"), "unit": "eV"}}, "finite"),
        ({"metal": {"max": 1, "unit": "eV"}}, "must be a text"),
        ({"metal": []}, "must be a text"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(filters, said, tmp_path):
    with pytest.raises(BadInput, match=said):
        opened(tmp_path).database().query(filters)


def test_text_of_sql_is_a_value_like_any_other(tmp_path):
    table = opened(tmp_path).database()
    evil = 'Cu\'; DROP TABLE "rows"; --'
    table.add(CU | {"metal": evil})
    table.add(CU)
    assert [r["metal"] for r in table.query({"metal": evil})] == [evil]
    assert table.query({"metal": "' OR '1'='1"}).total == 0 and table.query().total == 2


def test_a_row_is_complete_and_of_the_schema(tmp_path):
    table = opened(tmp_path).database()
    for wrong, said in (
        ({"metal": None}, "is missing"),
        ({"metal": " "}, "not an empty one"),
        ({"metal": 3}, "must be a text"),
        ({"adsorption_energy": "-1"}, "no number; it is in eV"),
        ({"adsorption_energy": True}, "no number"),
        ({"adsorption_energy": float("nan")}, "not finite"),
        ({"adsorption_energy": None}, "is missing"),
        ({"temperature": 600.0}, "no field 'temperature'"),
    ):
        with pytest.raises(BadInput, match=said):
            table.add(CU | wrong)
    assert table.query().total == 0


def test_pages_have_everything_once_and_say_how_many_there_are(tmp_path):
    table = opened(tmp_path).database()
    for i in range(7):
        table.add(CU | {"adsorption_energy": -i / 10})
    seen, offset = [], 0
    while offset is not None:
        page = table.query(order_by="adsorption_energy", limit=3, offset=offset)
        assert page.total == 7
        seen += [r["adsorption_energy"] for r in page]
        offset = page.next_offset
    assert seen == [-0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0]
    for limit, offset in ((0, 0), (1001, 0), (5, -1), (True, 0), (2.0, 0)):
        with pytest.raises(BadInput):
            table.query(limit=limit, offset=offset)


def test_a_replaced_row_keeps_its_past(tmp_path):
    table = opened(tmp_path).database()
    row = table.add(CU)
    again = table.replace(row.id, CU | {"adsorption_energy": -0.7})
    assert (again.id, again.version) == (row.id, 2)
    assert [r["adsorption_energy"] for r in table.query()] == [-0.7]
    assert [r["adsorption_energy"] for r in table.versions(row.id)] == [-0.5, -0.7]
    with pytest.raises(BadInput, match="has no row"):
        table.replace("nobody", CU)
    assert table.query({"adsorption_energy": {"min": -0.55, "max": -0.45, "unit": "eV"}}).total == 0, (
        "an old version"
    )


def test_without_versioning_only_the_newest_is_kept_and_that_is_on_record(tmp_path):
    define = [changed(r, provenance={"versioning": False}) for r in (CATALYST_DB, DFT_RESULTS)]
    resources = opened(tmp_path, define=define)
    row = resources.database().add(CU)
    resources.database().replace(row.id, CU | {"metal": "Pt"})
    assert [r.version for r in resources.database().versions(row.id)] == [2]
    assert resources.history("catalyst_db")[-1]["was"] == row.sha256
    resources.objects().put("a.json", {"x": 1})
    resources.objects().put("a.json", {"x": 2}, replace=True)
    assert [s.version for s in resources.objects().versions("a.json")] == [2]
    assert resources.objects().get("a.json") == {"x": 2}


@pytest.mark.parametrize(
    "change", ["adsorption_energy = -9.0", "run_id = 'other'", "metal = 'Pt'", "created_at = 0.5"]
)
def test_a_row_that_was_changed_by_hand_is_noticed(change, tmp_path):
    define = [changed(CATALYST_DB, storage={"retention_days": None})]
    table = opened(tmp_path, define=define).database()
    table.add(CU)
    with sqlite3.connect(tmp_path / "catalyst_db" / "table.sqlite") as connection:
        connection.execute(f"UPDATE rows SET {change}")
    connection.close()
    with pytest.raises(ContentChanged, match="not what was written"):
        table.query()


# Objects


@pytest.mark.parametrize(
    "key",
    [
        "../a.json",
        "a/b.json",
        "/etc/a.json",
        "..",
        ".",
        "",
        ".a.json",
        "a\x00.json",
        "a\n.json",
        "a\\b.json",
        "-a.json",
        "con.json",
        "a\u202e.json",
        "a" * 300 + ".json",
        "a.json ",
        7,
    ],
)
def test_a_key_is_one_name_and_leads_nowhere_else(key, tmp_path):
    store = opened(tmp_path).objects()
    for call in (lambda: store.put(key, {"x": 1}), lambda: store.get(key), lambda: store.put_file(key, __file__)):
        with pytest.raises(BadInput):
            call()
    assert list((tmp_path / "dft_results" / "objects").iterdir()) == []


def test_links_devices_and_pipes_are_not_stored(tmp_path):
    store = opened(tmp_path / "r").objects()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "link", tmp_path / "pipe", "/dev/zero", tmp_path, tmp_path / "nothing"):
        with pytest.raises(BadInput):
            store.put_file("a.bin", path)


def test_a_link_in_the_store_is_not_followed(tmp_path):
    store = opened(tmp_path / "r").objects()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "r" / "dft_results" / "objects" / "a.json").symlink_to(tmp_path / "elsewhere")
    for call in (lambda: store.put("a.json", {"x": 1}), lambda: store.get("a.json")):
        with pytest.raises(ContentChanged, match="symbolic link"):
            call()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    store.put("b.json", {"x": 1})
    content = tmp_path / "r" / "dft_results" / "objects" / "b.json" / "000001"
    content.rename(tmp_path / "moved")
    content.symlink_to(tmp_path / "moved")
    with pytest.raises(ContentChanged, match="not followed"):
        store.get("b.json")


def test_what_is_too_large_is_refused_and_leaves_nothing(tmp_path):
    define = [changed(DFT_RESULTS, content={"max_mb": 0.001})]
    store = opened(tmp_path / "r", define=define).objects()
    (tmp_path / "large").write_bytes(b"x" * 1001)
    (tmp_path / "fits").write_bytes(b"x" * 1000)
    with pytest.raises(BadInput, match="has 1001 bytes; at most 1000"):
        store.put_file("a.bin", tmp_path / "large")
    with pytest.raises(BadInput, match="at most 1000"):
        store.put("a.json", {"x": "y" * 1000})
    assert store.put_file("fits.bin", tmp_path / "fits").size == 1000
    assert [s.key for s in store.listed()] == ["fits.bin"]


@pytest.mark.parametrize(
    "value",
    [
        {"x": float("nan")},
        {"x": float("inf")},
        {1: "x"},
        {"x": {1, 2}},
        [1],
        {"x": b"y"},
        {"x": 2**70},
        {"x": "\ud800"},
    ],
)
def test_only_plain_finite_data_is_stored_as_json(value, tmp_path):
    with pytest.raises(BadInput):
        opened(tmp_path).objects().put("a.json", value)


def test_the_digest_is_that_of_the_bytes_and_a_change_is_noticed(tmp_path):
    store = opened(tmp_path).objects()
    stored = store.put("a.json", {"x": 1.5})
    path = tmp_path / "dft_results" / "objects" / "a.json" / "000001"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == stored.sha256
    path.write_bytes(path.read_bytes().replace(b"1.5", b"2.5"))
    with pytest.raises(ContentChanged, match="digest differs"):
        store.get("a.json")
    path.unlink()
    with pytest.raises(ContentChanged, match="is gone"):
        store.get("a.json")


def test_the_same_content_is_stored_once_and_other_content_is_a_version(tmp_path):
    store = opened(tmp_path).objects()
    assert store.put("a.json", {"x": 1}) == store.put("a.json", {"x": 1})
    with pytest.raises(BadInput, match="version 1, by anna"):
        store.put("a.json", {"x": 2})
    assert store.put("a.json", {"x": 2}, replace=True).version == 2
    assert store.get("a.json") == {"x": 2} and store.get("a.json", version=1) == {"x": 1}
    with pytest.raises(BadInput, match="no version 3; there are 1, 2"):
        store.get("a.json", version=3)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    store = opened(tmp_path).objects()
    store.put("a.json", {"x": 1})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreFull, match="No space left"):
            store.put("a.json", {"x": 2}, replace=True)
    assert store.get("a.json") == {"x": 1} and [s.version for s in store.versions("a.json")] == [1]
    assert store.put("a.json", {"x": 2}, replace=True).version == 2


# The notebook


def test_entries_are_numbered_and_each_has_the_digest_of_the_one_before(tmp_path):
    notebook = opened(tmp_path, "executor").notebook()
    one, two = notebook.append(ENTRY), notebook.append(ENTRY | {"experiment_id": "e2", "note": "more keys may be"})
    assert (one.number, two.number, two.previous) == (1, 2, one.sha256)
    assert [e.number for e in notebook.entries(experiment_id="e2")] == [2]
    assert notebook.head == (2, two.sha256) and notebook.verify(head=(1, one.sha256)) == 2
    # The digest by hand: of the line without it, keys sorted, no blanks.
    fields = json.loads((tmp_path / "lab_notebook" / "entries.jsonl").read_text().splitlines()[1])
    fields.pop("sha256")
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == two.sha256


def test_nobody_can_change_or_remove_an_entry(tmp_path):
    notebook = opened(tmp_path, "owner").notebook()
    public = {name for name in dir(notebook) if not name.startswith("_")}
    assert public == {"append", "copy_to", "create", "entries", "head", "name", "verify"}
    notebook.append(ENTRY)
    with pytest.raises(StoreFull):
        notebook.create()  # what makes it when it is not there
    assert notebook.verify() == 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: [lines[0].replace("e1", "e9"), *lines[1:]], "entry 1 is not what was written"),
        (lambda lines: [lines[0], lines[2]], "entry 2 does not follow"),
        (lambda lines: [lines[1], lines[0], lines[2]], "entry 1 does not follow"),
        (lambda lines: lines[:2], "entry 3 and what follows are gone: 3 were written"),
        (lambda lines: [], "entry 1 and what follows are gone: 3 were written"),
        (lambda lines: [*lines[:2], "nonsense"], "entry 3 is not what was written"),
    ],
)
def test_a_line_that_was_changed_put_in_or_removed_is_noticed(damage, said, tmp_path):
    notebook = opened(tmp_path).notebook()
    for i in (1, 2, 3):
        notebook.append(ENTRY | {"experiment_id": f"e{i}"})
    path = tmp_path / "lab_notebook" / "entries.jsonl"
    path.write_text("".join(f"{line}\n" for line in damage(path.read_text().splitlines())))
    for look in (notebook.entries, notebook.verify):
        with pytest.raises(ContentChanged, match=said):
            look()


def test_a_notebook_that_was_forged_whole_is_noticed_by_a_head_kept_elsewhere(tmp_path):
    mine, forged = opened(tmp_path / "a").notebook(), opened(tmp_path / "b").notebook()
    mine.append(ENTRY)
    head = mine.head
    forged.append(ENTRY | {"experiment_id": "e9"})
    there, here = (tmp_path / f / "lab_notebook" for f in ("b", "a"))
    (here / "entries.jsonl").write_bytes((there / "entries.jsonl").read_bytes())
    with pytest.raises(ContentChanged, match="entry 1 is not the last one that was written"):
        mine.verify()
    with pytest.raises(ContentChanged, match="is not the last one that was written"):
        mine.append(ENTRY)
    (here / "head.json").write_bytes((there / "head.json").read_bytes())
    assert mine.verify() == 1
    with pytest.raises(ContentChanged, match="written anew"):
        mine.verify(head=head)


def test_a_line_torn_by_a_kill_is_set_aside_and_the_notebook_goes_on(tmp_path):
    notebook = opened(tmp_path).notebook()
    notebook.append(ENTRY)
    path = tmp_path / "lab_notebook" / "entries.jsonl"
    with path.open("ab") as file:
        file.write(b'{"number": 2, "content')
    assert notebook.verify() == 1
    assert notebook.append(ENTRY).number == 2 and notebook.verify() == 2
    assert (tmp_path / "lab_notebook" / "entries.torn").read_bytes() == b'{"number": 2, "content\n'
    assert "torn" in [e["event"] for e in opened(tmp_path).history("lab_notebook")]


def test_a_writer_killed_between_entry_and_head_has_lost_nothing(tmp_path):
    notebook = opened(tmp_path).notebook()
    notebook.append(ENTRY)
    head = tmp_path / "lab_notebook" / "head.json"
    before = head.read_bytes()
    notebook.append(ENTRY)
    head.write_bytes(before)
    assert notebook.verify() == 2 and notebook.append(ENTRY).number == 3 and notebook.verify() == 3


def test_writers_killed_one_after_the_other_between_entry_and_head_do_not_lock_the_notebook(tmp_path):
    notebook = opened(tmp_path).notebook()
    head = tmp_path / "lab_notebook" / "head.json"
    notebook.append(ENTRY)
    before = head.read_bytes()
    notebook.append(ENTRY)
    notebook.append(ENTRY)
    head.write_bytes(before)
    assert notebook.append(ENTRY).number == 4 and notebook.verify() == 4
    # What does not follow from the head is still refused.
    lines = (tmp_path / "lab_notebook" / "entries.jsonl").read_bytes().splitlines(keepends=True)
    head.write_bytes(before)
    (tmp_path / "lab_notebook" / "entries.jsonl").write_bytes(lines[0] + b"".join(lines[2:]))
    with pytest.raises(ContentChanged, match="does not follow"):
        notebook.append(ENTRY)


def test_an_entry_whose_head_a_full_disk_refuses_is_cut_off_again(tmp_path, monkeypatch):
    notebook = opened(tmp_path).notebook()
    notebook.append(ENTRY)
    folder = tmp_path / "lab_notebook"
    before = (folder / "entries.jsonl").read_bytes()

    def full(*_: object) -> None:
        raise StoreFull("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Place, "write", full)
        for _ in range(3):
            with pytest.raises(StoreFull):
                notebook.append(ENTRY)
            assert (folder / "entries.jsonl").read_bytes() == before
    assert notebook.append(ENTRY).number == 2

    write = Place.write

    def late(self: Place, path: Path, data: bytes) -> None:
        write(self, path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Place, "write", late)
        with pytest.raises(KeyboardInterrupt):
            notebook.append(ENTRY)
    assert notebook.verify() == 3, "the head speaks of it"


@pytest.mark.parametrize(
    "wrong",
    [
        {"experiment_id": ""},
        {"experiment_id": 4},
        {"inputs": "Cu"},
        {"output_uri": 5},
        {"x": float("nan")},
        {"note": "x" * 200000},
    ],
)
def test_an_entry_has_what_the_notebook_requires(wrong, tmp_path):
    notebook = opened(tmp_path).notebook()
    with pytest.raises(BadInput):
        notebook.append(ENTRY | wrong)
    with pytest.raises(BadInput, match="has no inputs"):
        notebook.append({k: v for k, v in ENTRY.items() if k != "inputs"})
    assert notebook.append(ENTRY | {"output_uri": None}).number == 1


# Copies, and many at once


def test_a_snapshot_is_a_folder_that_opens_as_it_was(tmp_path):
    resources = opened(tmp_path / "r", "owner")
    row = resources.database().add(CU)
    resources.notebook().append(ENTRY)
    resources.objects().put("a.json", {"x": 1})
    for name in ("catalyst_db", "lab_notebook", "dft_results"):
        copy = resources.snapshot(name)
        (tmp_path / "copy").mkdir(exist_ok=True)
        copy.rename(tmp_path / "copy" / name)
    resources.database().replace(row.id, CU | {"metal": "Pt"})
    again = opened(tmp_path / "copy", "reader")
    assert [r["metal"] for r in again.database().query()] == ["Cu"]
    assert again.notebook().verify() == 1 and again.objects().get("a.json") == {"x": 1}
    with pytest.raises(NotPermitted):
        opened(tmp_path / "r", "planner").snapshot("catalyst_db")


WRITER = """
import sys
from hpcagent.resources import Resources
folder, name = sys.argv[1:]
resources = Resources.open(folder, caller=name, role="executor")
table, store, notebook = resources.database(), resources.objects(), resources.notebook()
row = {"metal": "Cu", "support": "none", "adsorbate": "O", "adsorption_energy": -1.0, "reference": "x", "method": "m"}
for i in range(12):
    run = f"{name}-{i}"
    table.add(row, run_id=run)
    store.put(f"{run}.json", {"run": run}, run_id=run)
    notebook.append({"experiment_id": run, "inputs": {}, "output_uri": None})
"""


@pytest.mark.slow
def test_eight_processes_write_at_once_and_nothing_is_lost(tmp_path):
    """They make the resources, too: all eight begin in an empty folder."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"w{i}"], stderr=subprocess.PIPE, text=True)
        for i in range(8)
    ]
    for writer in writers:
        assert writer.wait(300) == 0, writer.stderr.read()
        writer.stderr.close()
    wanted = {f"w{i}-{j}" for i in range(8) for j in range(12)}
    resources = opened(tmp_path)
    assert {r.run_id for r in resources.database().query(limit=1000)} == wanted
    assert {resources.objects().get(s.key)["run"] for s in resources.objects().listed(limit=1000)} == wanted
    entries = resources.notebook().entries(limit=1000)
    assert len(entries) == 96 == resources.notebook().verify()
    assert {e["experiment_id"] for e in entries} == wanted
    for name in ("catalyst_db", "dft_results", "lab_notebook"):
        events = [e["event"] for e in resources.history(name)]
        assert len(events) == 97 and events.count("provisioned") == 1
    assert not list(tmp_path.glob(".*")), "what lost the race to make a resource is gone"


REPLACER = """
import sys
from hpcagent.resources import Resources
folder, name = sys.argv[1:]
resources = Resources.open(folder, caller=name, role="planner")
row = resources.database().query().items[0]
for i in range(10):
    resources.objects().put("a.json", {"by": name, "i": i}, replace=True)
    resources.database().replace(row.id, dict(row.values) | {"reference": f"{name}-{i}"})
"""


@pytest.mark.slow
def test_versions_that_are_written_at_once_are_all_kept(tmp_path):
    resources = opened(tmp_path)
    row = resources.database().add(CU)
    names = [f"w{i}" for i in range(4)]
    writers = [subprocess.Popen([sys.executable, "-c", REPLACER, str(tmp_path), name]) for name in names]
    assert [writer.wait(300) for writer in writers] == [0] * 4
    wanted = {(name, i) for name in names for i in range(10)}
    store = resources.objects()
    kept = [store.get("a.json", version=s.version) for s in store.versions("a.json")]
    assert len(kept) == 40 and {(k["by"], k["i"]) for k in kept} == wanted
    versions = resources.database().versions(row.id)
    assert [v.version for v in versions] == list(range(1, 42))
    assert {v["reference"] for v in versions[1:]} == {f"{name}-{i}" for name, i in wanted}


def test_a_claim_is_held_by_one_at_a_time(tmp_path):
    resources = opened(tmp_path)
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        with resources.claim("catalyst_db", "work") as waited:
            order.append(f"second, waited: {waited}")

    with resources.claim("catalyst_db", "work") as waited:
        assert not waited
        thread = threading.Thread(target=second)
        thread.start()
        assert begun.wait(60)
        with resources.claim("catalyst_db", "other work") as other:
            assert not other
        thread.join(0.2)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second, waited: True"]
