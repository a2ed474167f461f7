"""One question to any database of materials: what is found, what is refused, what is said of the source."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

import hpcagent as ha
from hpcagent.errors import BadInput, NotPermitted, SourceFailed
from hpcagent.materials import (
    Answer,
    AseDatabase,
    Campaigns,
    Filters,
    Optimade,
    query_materials_database,
    source_behind,
)
from hpcagent.materials.formulas import counts_of, named_formulas, reduced_text
from hpcagent.resources import Resource, Resources
from hpcagent.resources.record import CATALYST_DB

CU = {
    "metal": "Cu",
    "support": "ZnO",
    "adsorbate": "CO",
    "adsorption_energy": -0.5,
    "reference": "doi:10.0000/x",
    "method": "measured",
}


# The question


@pytest.mark.parametrize(
    ("formula", "counts"),
    [
        ("CuZnO", {"Cu": 1, "Zn": 1, "O": 1}),
        ("Ca3(PO4)2", {"Ca": 3, "P": 2, "O": 8}),
        ("CO", {"C": 1, "O": 1}),
        ("Co", {"Co": 1}),
        ("CH3CH2OH", {"C": 2, "H": 6, "O": 1}),
    ],
)
def test_a_formula_is_counted(formula, counts):
    assert counts_of(formula) == counts


@pytest.mark.parametrize(
    "text", ["", "cu", "Xx", "Cu0", "(Cu", "Cu)", "Cu2.5", "Cu O", "A" * 300, "Cu;", None, "((((O"]
)
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(BadInput, match="no chemical formula"):
        counts_of(text)


def test_a_query_is_made_of_formulas():
    assert named_formulas("Cu-ZnO") == named_formulas("Cu/ZnO") == named_formulas(" Cu ZnO ") == ("Cu", "ZnO")
    assert reduced_text(counts_of("Ti2O4")) == "O2Ti"


@pytest.mark.parametrize(
    "query", ["SELECT * FROM rows", "Cu'; DROP TABLE rows; --", "copper on zinc oxide", "Cu--", "Cu=1", 3]
)
def test_words_and_sql_are_no_query(query, tmp_path):
    table = Resources.open(tmp_path, caller="a", role="planner").database()
    with pytest.raises(BadInput, match="query="):
        query_materials_database(query, source=table)


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ("elements HAS 'Cu'", "text of a query language"),
        ({"elements": ["Xq"]}, "is no element"),
        ({"element": ["Cu"]}, "unknown key 'element'"),
        ({"formula": "Foo"}, "no chemical formula"),
        ({"nelements": 0}, "greater than or equal to 1"),
        ({"ranges": {"energy": {"unit": "eV"}}}, "without min and max"),
        ({"ranges": {"energy": {"max": float("inf"), "unit": "eV"}}}, "finite"),
    ],
)
def test_filters_are_structured_and_none_is_dropped(filters, said):
    with pytest.raises(BadInput, match=said):
        Filters.of(filters)


def test_a_source_is_something_that_can_be_asked(tmp_path):
    for source in (tmp_path / "nothing", 3, None):
        with pytest.raises(BadInput, match=r"source|neither a file nor a folder"):
            query_materials_database("", source=source)

    class Own:
        def find(self, asked):
            return Answer("own", "1", 0.0, asked.query, (), 0)

    assert query_materials_database("Cu", source=Own()).query == "Cu"


# A table of catalysts


def test_a_table_is_asked_by_metal_and_support(tmp_path):
    table = Resources.open(tmp_path, caller="a", role="planner").database()
    row = table.add(CU)
    table.add(CU | {"support": "none"})
    table.add(CU | {"metal": "Pt", "adsorption_energy": -1.5})
    answer = query_materials_database("Cu-ZnO", source=table)
    assert answer.artifact_ids == (f"catalyst_db:{row.id}",)
    assert (answer.source, answer.total, answer.shown) == ("resource:catalyst_db", 1, 1)
    assert json.loads(answer.query) == {"metal": "Cu", "support": "ZnO"}
    assert query_materials_database("Cu", source=table).total == 2
    strong = {"ranges": {"adsorption_energy": {"max": -1200.0, "unit": "meV"}}}
    (found,) = query_materials_database("", strong, source=table)
    assert (found["metal"], found["adsorption_energy"], found.units["adsorption_energy"]) == ("Pt", -1.5, "eV")
    page = query_materials_database("", source=table, limit=2)
    assert (page.shown, page.total, page.next_offset) == (2, 3, 2)
    assert query_materials_database("", source=table, limit=2, offset=2).next_offset is None


def test_a_row_at_the_bound_is_found_in_every_unit(tmp_path):
    table = Resources.open(tmp_path, caller="a", role="planner").database()
    # Times 0.001 these are not the floats that are written 0.009, 0.103, ...
    bounds = (9, 103, 205, 700)
    for k in bounds:
        table.add(CU | {"adsorption_energy": -k / 1000})
    for k in bounds:
        for unit, at in (("meV", -k), ("eV", -k / 1000)):
            at_bound = {"ranges": {"adsorption_energy": {"min": at, "max": at, "unit": unit}}}
            (found,) = query_materials_database("", at_bound, source=table)
            assert found["adsorption_energy"] == -k / 1000


@pytest.mark.parametrize(
    ("query", "filters", "said"),
    [
        ("", {"elements": ["Cu"]}, "cannot judge elements"),
        ("", {"formula": "CuO"}, "cannot judge formula"),
        ("", {"ranges": {"temperature": {"max": 600, "unit": "K"}}}, "no number 'temperature'"),
        ("", {"texts": {"colour": "red"}}, "no text 'colour'"),
        ("Cu", {"texts": {"metal": "Pt"}}, "leave one out"),
        ("Cu-ZnO-Al2O3", {}, "names 3 materials"),
    ],
)
def test_what_a_table_cannot_judge_is_refused(query, filters, said, tmp_path):
    table = Resources.open(tmp_path, caller="a", role="planner").database()
    with pytest.raises(BadInput, match=said):
        query_materials_database(query, filters, source=table)


# An ASE database


@pytest.fixture
def ase_file(tmp_path):
    pytest.importorskip("ase")
    from ase.build import bulk
    from ase.calculators.emt import EMT
    from ase.db import connect

    path = tmp_path / "bulk.db"
    with connect(path) as file:
        for name in ("Cu", "Al", "Pt"):
            atoms = bulk(name)
            atoms.calc = EMT()
            atoms.get_potential_energy()
            file.write(atoms, gap=0.0, kind="metal", hardness=1.0)
        file.write(bulk("NaCl", "rocksalt", a=5.64), gap=8.5, kind="salt")
        file.write(bulk("NaCl", "rocksalt", a=5.64, cubic=True), gap=8.5, kind="salt")
        file.write(bulk("MgO", "rocksalt", a=4.21), gap=7.8, kind="oxide")
    connect(path).metadata = {"key_descriptions": {"gap": ("Gap", "Band gap", "eV"), "hardness": ("H", "H", "?")}}
    return path


def test_an_ase_database_is_asked_by_elements_formula_and_ranges(ase_file):
    def ask(query="", **filters):
        return query_materials_database(query, filters, source=ase_file)

    before = ase_file.read_bytes()
    assert [r.formula for r in ask("NaCl")] == ["ClNa", "ClNa"]
    assert ask(formula="Na4Cl4").total == 2 and ask(nelements=1).total == 3 and ask(elements=["O"]).total == 1
    # 8000 meV = 8 eV, by the unit in the file's metadata.
    assert ask(ranges={"gap": {"min": 8000.0, "unit": "meV"}}).total == 2
    # The primitive cell of rocksalt has a^3/4: 5.64^3/4 = 44.85, 4.21^3/4 = 18.65 angstrom^3.
    small = ask(ranges={"volume": {"max": 20.0, "unit": "angstrom^3"}, "gap": {"min": 1.0, "unit": "eV"}})
    assert [r.formula for r in small] == ["MgO"] and small.records[0]["volume"] == pytest.approx(4.21**3 / 4)
    # A salt has no energy here, so it is in no range of energies.
    assert ask(ranges={"energy": {"max": 1e6, "unit": "eV"}}).total == 3
    assert ask(texts={"kind": "salt"}).total == 2 and ask(texts={"kind": ["salt", "oxide"]}).total == 3
    answer = ask()
    assert (answer.total, answer.source) == (6, f"ase:{ase_file}")
    assert answer.version.startswith("ase.db ") and len(set(answer.artifact_ids)) == 6
    assert answer.records[0].units["energy"] == "eV" and answer.records[3].units["gap"] == "eV"
    assert ase_file.read_bytes() == before and [p.name for p in ase_file.parent.iterdir()] == ["bulk.db"]


def test_pages_of_an_ase_database_have_every_row_once(ase_file):
    for filters in ({}, {"nelements": 2}):
        every = query_materials_database("", filters, source=ase_file).artifact_ids
        seen, offset = [], 0
        while offset is not None:
            page = query_materials_database("", filters, source=ase_file, limit=2, offset=offset)
            assert page.total == len(every)
            seen += page.artifact_ids
            offset = page.next_offset
        assert tuple(seen) == every


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"ranges": {"temperature": {"max": 600, "unit": "K"}}}, "no number 'temperature'"),
        ({"ranges": {"energy": {"max": 1}}}, "has no unit"),
        ({"ranges": {"energy": {"max": 1, "unit": "K"}}}, "cannot be converted"),
        ({"ranges": {"hardness": {"max": 1, "unit": "GPa"}}}, "does not say the unit"),
        ({"texts": {"spacegroup": "225"}}, "no text 'spacegroup'"),
    ],
)
def test_what_an_ase_database_cannot_judge_is_refused(filters, said, ase_file):
    with pytest.raises(BadInput, match=said):
        query_materials_database("", filters, source=ase_file)


def test_a_number_without_a_unit_is_compared_as_it_is_stored(ase_file):
    assert query_materials_database("", {"ranges": {"hardness": {"min": 0.5}}}, source=ase_file).total == 3


def test_a_file_that_is_no_ase_database_is_refused_and_left_alone(tmp_path):
    import sqlite3

    (tmp_path / "text.db").write_text("no database")
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    for name in ("text.db", "other.db"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(BadInput, match=r"no SQLite file|no ASE database"):
            query_materials_database("", source=tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(BadInput, match="cannot be read"):
        query_materials_database("", source=AseDatabase(tmp_path / "none.db"))
    assert not (tmp_path / "none.db").exists()


# Campaigns


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory):
    pytest.importorskip("ase")
    folder = tmp_path_factory.mktemp("campaigns")
    campaign = ha.Campaign(
        ha.apps.adsorption,
        ha.minimize("adsorption_energy"),
        space={"metal": {"choices": ["Cu", "Pt", "Fe"]}},  # EMT has no iron: a run that fails
        fixed={"engine": "emt", "relax": "none", "layers": 2, "site": "fcc", "adsorbate": "O"},
        policy="grid",
        until=ha.until.max_runs(3),
    )
    ended = ha.run(campaign, site="threads", run_dir=folder / "oxygen", progress=False)
    other = ha.Campaign(ha.apps.synthetic, ha.maximize("value"), policy="random", until=ha.until.max_runs(2))
    ha.run(other, site="threads", run_dir=folder / "synthetic", progress=False)
    return folder, ended


def test_own_results_are_found_by_elements_metrics_and_parameters(campaigns):
    folder, ended = campaigns
    energies = {r.manifest.params["metal"]: r["adsorption_energy"] for r in ended.results if r.ok}
    ids = {r.manifest.params["metal"]: r.manifest.execution_id for r in ended.results}
    assert energies.keys() == {"Cu", "Pt"}

    answer = query_materials_database("Pt", {"elements": ["O"]}, source=folder)
    assert answer.artifact_ids == (f"run:{ids['Pt']}",)
    (found,) = answer
    # A cell of one atom and two layers, a full monolayer: 2 Pt, 1 O.
    assert (found.formula, found["adsorption_energy"]) == ("OPt2", energies["Pt"])
    assert found.units["adsorption_energy"] == "eV" and found.where
    assert "runs have made no structure" in answer.notes[0], "those of the other campaign"

    middle = sum(energies.values()) / 2
    lower = {"ranges": {"adsorption_energy": {"max": middle * 1000, "unit": "meV"}}}
    (low,) = query_materials_database("", lower, source=Campaigns(folder))
    assert low["metal"] == min(energies, key=energies.get)
    assert query_materials_database("", {"texts": {"metal": ["Cu", "Fe"]}}, source=folder).total == 1
    assert query_materials_database("", {"texts": {"app": "synthetic"}}, source=folder).total <= 2
    assert "in 2 campaigns" in answer.version and answer.source == f"campaigns:{folder}"


def test_a_metric_that_no_campaign_has_is_refused(campaigns):
    folder, _ = campaigns
    with pytest.raises(BadInput, match="no number 'temperature'"):
        query_materials_database("", {"ranges": {"temperature": {"max": 600, "unit": "K"}}}, source=folder)
    with pytest.raises(BadInput, match="cannot be converted"):
        query_materials_database("", {"ranges": {"adsorption_energy": {"max": 6, "unit": "K"}}}, source=folder)
    with pytest.raises(BadInput, match="no campaign that can be read"):
        query_materials_database("", source=folder / "oxygen" / "work")


# OPTIMADE: a provider that answers what the test says


META = {
    "query": {"representation": "/structures"},
    "api_version": "1.2.0",
    "more_data_available": False,
    "data_returned": 1,
    "provider": {"name": "Test", "description": "of a test", "prefix": "test"},
    "implementation": {"name": "stand-in", "version": "0.1"},
}
CUO = {
    "type": "structures",
    "id": "cuo",
    "attributes": {"elements": ["Cu", "O"], "nelements": 2, "nsites": 4, "chemical_formula_reduced": "CuO"},
}
INFO = {
    "data": {
        "properties": {
            "nsites": {"type": "integer"},
            "nelements": {"type": "integer"},
            "elements": {"type": "list"},
            "chemical_formula_anonymous": {"type": "string"},
            "_test_gap": {"type": "float", "unit": "eV"},
            "_test_odd": {"type": "float", "unit": "furlong"},
        }
    },
    "meta": META,
}


@pytest.fixture
def provider():
    """A provider on loopback: `answers` is a list of (status, headers, body) or bodies, the last one repeated."""
    pytest.importorskip("optimade")
    asked: list[str] = []
    answers: list = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if urlsplit(self.path).path.endswith("/info/structures"):
                status, headers, body = 200, {}, INFO
            else:
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                status, headers, body = answer if isinstance(answer, tuple) else (200, {}, answer)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *said):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    server.asked, server.answers, server.url = asked, answers, f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def one(*entries, **meta):
    return {"data": list(entries or [CUO]), "meta": {**META, **meta}, "links": {"next": None}}


def ask(provider, query="", filters=None, **more):
    return query_materials_database(query, filters, source=Optimade(provider.url, pause_s=0.0), **more)


def test_a_provider_is_asked_in_its_language_and_the_answer_says_who_it_is(provider):
    provider.answers.append(one())
    filters = {
        "nelements": 2,
        "formula": "Cu4O4",
        "ranges": {"_test_gap": {"min": 500, "unit": "meV"}, "nsites": {"max": 10, "unit": "1"}},
        "texts": {"chemical_formula_anonymous": ['A"B', "AB"]},
    }
    answer = ask(provider, "CuO", filters)
    sent = parse_qs(urlsplit(provider.asked[-1]).query)
    wanted = (
        'elements HAS ALL "Cu", "O" AND nelements = 2 AND chemical_formula_reduced = "CuO" AND _test_gap >= 0.5 '
        r'AND nsites <= 10 AND (chemical_formula_anonymous = "A\"B" OR chemical_formula_anonymous = "AB")'
    )
    assert sent["filter"] == [wanted] and answer.query == wanted
    assert answer.artifact_ids == (f"optimade:{provider.url}/v1/structures/cuo",)
    assert (answer.records[0].formula, answer.records[0]["nsites"], answer.total) == ("CuO", 4.0, 1)
    assert answer.version == "OPTIMADE 1.2.0, stand-in 0.1, Test"


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"ranges": {"temperature": {"max": 600, "unit": "K"}}}, "no number 'temperature'"),
        ({"ranges": {"_test_odd": {"max": 6, "unit": "nm"}}}, "no unit of it that is understood"),
        ({"ranges": {"_test_gap": {"max": 6, "unit": "nm"}}}, "cannot be converted"),
        ({"ranges": {"elements": {"max": 6, "unit": "1"}}}, "is a list, not a number"),
        ({"texts": {"nsites": "4"}}, "is a integer, not a text"),
    ],
)
def test_what_a_provider_cannot_judge_is_refused_before_it_is_asked(filters, said, provider):
    provider.answers.append(one())
    with pytest.raises(BadInput, match=said):
        ask(provider, "", filters)
    assert not any("/structures?" in path for path in provider.asked)


def entry(i):
    return {**CUO, "id": f"s{i}"}


def test_pages_of_a_provider_are_followed_and_not_further_than_asked(provider):
    for i in range(0, 6, 2):
        more = i < 4
        link = f"{provider.url}/v1/structures?page={i}" if more else None
        page = one(entry(i), entry(i + 1), more_data_available=more, data_returned=6)
        provider.answers.append({**page, "links": {"next": {"href": link} if i == 0 else link}})
    answer = ask(provider, limit=3, offset=1)
    assert [r.artifact_id.rpartition("/")[2] for r in answer] == ["s1", "s2", "s3"]
    assert (answer.total, answer.shown, answer.next_offset) == (6, 3, 4)
    assert len(provider.asked) == 2, "the third page was not needed"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>", "no JSON"),
        (b'{"data": [], "meta": {"x": NaN}}', "NaN is no number"),
        ([], "no JSON object"),
        ({"data": []}, "no meta"),
        ({"data": [], "meta": {"api_version": "1.2.0"}}, "meta"),
        (one(api_version="2.0.0"), "1.x was asked for"),
        (one({"type": "references", "id": "a", "attributes": {}}), "is no structure"),
        (one({"type": "structures", "attributes": {}}), "has no id"),
        (one({**CUO, "attributes": {"elements": ["O", "Cu"], "nelements": 2}}), "elements"),
        (one({**CUO, "attributes": {"elements": ["Cu", "O"], "nelements": 3}}), "nelements 3"),
        (one({**CUO, "attributes": {"chemical_formula_reduced": "OCu"}}), "chemical_formula_reduced"),
        (one({**CUO, "attributes": {"chemical_formula_reduced": "CuO", "elements": ["Cu"]}}), "chemical_formula"),
        (one(CUO, CUO), "twice"),
        (one(more_data_available=True), "no link to it"),
        ({**one(more_data_available=True), "links": {"next": "http://example.invalid/v1/x"}}, "another host"),
        ({**one(more_data_available=True), "links": {"next": "file:///etc/passwd"}}, "another host"),
        ({"errors": [{"detail": "no such field"}], "meta": META}, "no such field"),
        ((400, {}, {"errors": [{"detail": "bad filter"}]}), r"HTTP 400: bad filter"),
        ((302, {"Location": "http://example.invalid/"}, b""), "another host"),
    ],
)
def test_an_answer_against_the_protocol_is_refused(answer, said, provider):
    provider.answers.append(answer)
    with pytest.raises(SourceFailed, match=said):
        ask(provider)
    assert len(provider.asked) == 1, "it is not asked again"


def test_a_page_that_leads_in_a_circle_ends(provider):
    link = f"{provider.url}/v1/structures?page=1"
    provider.answers += [
        {**one(entry(0), more_data_available=True), "links": {"next": link}},
        {**one(entry(1), more_data_available=True), "links": {"next": link}},
    ]
    with pytest.raises(SourceFailed, match="nowhere new"):
        ask(provider)


def test_a_provider_that_asks_to_wait_is_asked_again(provider):
    provider.answers += [(503, {}, b""), (429, {"Retry-After": "0"}, b""), one()]
    assert ask(provider).total == 1 and len(provider.asked) == 3
    provider.answers[:] = [(503, {}, b"")]
    with pytest.raises(SourceFailed, match=r"has not answered in 3 tries: HTTP 503"):
        ask(provider)


def test_what_a_provider_warns_of_is_told_and_does_nothing_to_a_terminal(provider):
    provider.answers.append(one(warnings=[{"type": "warning", "title": "x", "detail": "field \x1b[2J unknown"}]))
    (note,) = ask(provider).notes
    assert note == "the provider warns: field \\x1b[2J unknown"


def test_an_answer_that_is_too_large_or_too_slow_is_given_up(provider):
    provider.answers.append(one(*(entry(i) for i in range(100))))
    with pytest.raises(SourceFailed, match=r"more than 0\.001 MB"):
        Optimade(provider.url, max_mb=0.001).find(_asked())
    import socket

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        silent = Optimade(f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=0.05, tries=2, pause_s=0.0)
        with pytest.raises(SourceFailed, match="not answered in 2 tries"):
            silent.find(_asked())


def _asked():
    from hpcagent.materials.filters import Asked

    return Asked.of("", None, 50, 0)


@pytest.mark.parametrize(
    "address",
    ["ftp://x/", "file:///etc", "https://", "https://user:secret@x/", "https://x/?a=1", "https://x:port/", None],
)
def test_an_address_is_one_of_a_provider_and_has_no_password(address):
    with pytest.raises(BadInput) as caught:
        Optimade(address)
    assert "secret" not in str(caught.value)


# Proxies of other systems, as resources


def test_a_resource_that_stands_for_another_system_is_asked_as_that(ase_file, tmp_path):
    plain = CATALYST_DB.model_dump()
    proxy = Resource(
        **{
            **plain,
            "identity": {"name": "bulk_db", "type": "database"},
            "access": {"access": "read", "permissions": {"planner": ("read",)}},
            "storage": {"backend": "proxy", "target": str(ase_file)},
            "content": {"format": "ase"},
        }
    )
    resources = Resources.open(tmp_path / "r", caller="a", role="planner", define=[proxy])
    assert query_materials_database("NaCl", source=source_behind(resources, "bulk_db")).total == 2
    with pytest.raises(BadInput, match="query_materials_database"):
        resources.database("bulk_db")
    with pytest.raises(NotPermitted):
        source_behind(Resources.open(tmp_path / "r", caller="b", role="executor", define=[proxy]), "bulk_db")
