"""Programs that are run for real: one in C, small ones in Python, and what calls an app of them as a worker does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcagent.apps.base import App
from hpcagent.apps.worker import execute

QUAD = r"""
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* quad N METHOD --out FILE: the integral of exp(x) from 0 to 1 by N panels */
int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: quad N METHOD --out FILE\n"); return 2; }
    int n = atoi(argv[1]), simpson = !strcmp(argv[2], "simpson");
    double h = 1.0 / n, sum = 0;
    if (n == 13) { printf("iteration did not converge\n"); return 0; }
    if (n == 14) return 4;
    if (n == 15) abort();
    for (int i = 0; i < n; i++) {
        double a = i * h, b = a + h;
        sum += simpson ? h / 6 * (exp(a) + 4 * exp((a + b) / 2) + exp(b)) : h / 2 * (exp(a) + exp(b));
    }
    FILE *out = fopen(argv[4], "w");
    fprintf(out, "{\"result\": {\"integral\": %.17g, \"errors\": [%.17g]}}\n", sum, fabs(sum - (M_E - 1)));
    fclose(out);
    printf("step 1 took 7 ms\nin all: %d evaluations\n", n * (simpson ? 3 : 2));
    return 0;
}
"""


@pytest.fixture(scope="session")
def quad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program `quad`, compiled from C."""
    folder = tmp_path_factory.mktemp("quad")
    (folder / "quad.c").write_text(QUAD)
    subprocess.run(["gcc", "-O1", "-o", "quad", "quad.c", "-lm"], cwd=folder, check=True)
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], str]:
    """Writes a program in Python into the test's folder: `python(code)` gives its name."""

    def write(code: str, name: str = "tool") -> str:
        path = tmp_path / name
        path.write_text(f"#!{sys.executable} -IS\nimport json, os, sys\n{code}\n")
        path.chmod(0o755)
        return f"./{name}"

    return write


@pytest.fixture
def called(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs an app once, as a worker does, and gives the fields of its result."""

    def call(app: App, site: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        manifest = app.manifest(params)
        return execute(app.order(manifest, work=work, site=site or {}))

    return call
