"""A provider of the reference implementation on loopback: the whole protocol, not a stand-in."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from hpcagent.materials import query_materials_database

pytest.importorskip("optimade.server", reason="the server of OPTIMADE's reference implementation is not installed")
pytest.importorskip("mongomock")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow

SERVER = """
import sys
import uvicorn
from optimade.server.config import ServerConfig
from optimade.server.create_app import create_app
names = {  # of the test data
    "id": "task_id",
    "chemical_formula_descriptive": "pretty_formula",
    "chemical_formula_reduced": "pretty_formula",
    "chemical_formula_anonymous": "formula_anonymous",
}
app = create_app(
    ServerConfig(insert_test_data=True, database_backend="mongomock", aliases={"structures": names})
)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


@pytest.fixture(scope="module")
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/versions", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < until
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def test_structures_are_found_and_counted_as_the_server_has_them(address):
    # The test data that come with the server: two structures have silicon among several elements.
    answer = query_materials_database("Si", {"ranges": {"nelements": {"min": 2, "unit": "1"}}}, source=address)
    assert answer.total == answer.shown == 2
    assert all("Si" in r["elements"].split() for r in answer)
    assert answer.query == 'elements HAS ALL "Si" AND nelements >= 2'
    assert answer.version.startswith("OPTIMADE 1.")


def test_all_pages_have_every_structure_once(address):
    whole = query_materials_database("", source=address)
    assert whole.total == whole.shown == 17
    seen, offset = [], 0
    while offset is not None:
        page = query_materials_database("", source=address, limit=5, offset=offset)
        seen += page.artifact_ids
        offset = page.next_offset
    assert tuple(seen) == whole.artifact_ids and len(set(seen)) == 17


def test_a_range_holds_for_all_that_are_found_and_for_no_other(address):
    sites = [r["nsites"] for r in query_materials_database("", source=address)]
    limit = sorted(sites)[8]
    found = query_materials_database("", {"ranges": {"nsites": {"max": limit, "unit": "1"}}}, source=address)
    assert sorted(r["nsites"] for r in found) == sorted(n for n in sites if n <= limit)
    assert found.records[0].units["nsites"] == "1"


def test_elements_and_formulas_are_understood_as_they_are_meant(address):
    # By hand, of the 17 structures of the test data.
    assert query_materials_database("AgCl", source=address).total == 7
    assert query_materials_database("AgCl", {"nelements": 4}, source=address).total == 1
    (found,) = query_materials_database("", {"formula": "Ag20Br2Cl2Te8"}, source=address)
    assert (found.formula, found["nsites"]) == ("Ag10BrClTe4", 16.0)
    (found,) = query_materials_database("", {"texts": {"chemical_formula_descriptive": "Ac2O3"}}, source=address)
    assert found.formula == "Ac2O3"


def test_an_artifact_is_found_again_by_its_id(address):
    record = query_materials_database("", {"formula": "Ac2O3"}, source=address).records[0]
    assert record.artifact_id == f"optimade:{address}/v1/structures/mpf_30"
    with urllib.request.urlopen(record.where, timeout=30) as response:
        assert json.load(response)["data"]["attributes"]["chemical_formula_reduced"] == "Ac2O3"
