"""The packaged endpoint templates, held against the endpoint's own code: its renderer, schema check and engines."""

from __future__ import annotations

import json
import os
import pwd
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hpcagent.errors import BadInput
from hpcagent.sites.endpoint_templates import TEMPLATE_FILES, copy_template, templates

pytest.importorskip("globus_compute_endpoint")

import jsonschema
from globus_compute_endpoint.endpoint.config.config import CoreEndpointConfig
from globus_compute_endpoint.endpoint.config.utils import (
    load_config_yaml,
    load_user_config_schema,
    load_user_config_template,
    render_config_user_template,
)

pytestmark = [
    pytest.mark.globus,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # parsl.addresses, at every engine
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BATCH = {"account": "m1234", "queue": "debug", "walltime": "01:30:00", "nodes_per_block": 2, "max_blocks": 3}
FULL: dict[str, dict[str, Any]] = {
    "slurm": {**BATCH, "qos": "high", "constraint": "cpu&a100", "gpus_per_node": 4},
    "pbs": {**BATCH, "cpus_per_node": 64, "select_options": "ngpus=4", "filesystems": "home:eagle"},
    "machine": {"workers_per_node": 2, "cores_per_worker": 2},
}
LEAST: dict[str, dict[str, Any]] = {"slurm": {}, "pbs": {"cpus_per_node": 64}, "machine": {}}
NODES = ["slurm", "pbs", "machine"]


def render(folder: Path, values: dict[str, Any]) -> str:
    """What the endpoint does with values that came with a task."""
    me = pwd.getpwuid(os.getuid())
    return str(
        render_config_user_template(
            parent_config=CoreEndpointConfig(),
            user_config_template=load_user_config_template(folder / TEMPLATE_FILES[0]),
            user_config_template_path=folder / TEMPLATE_FILES[0],
            mapped_identity=SimpleNamespace(local_user_record=me, matched_identity="x"),
            user_config_schema=load_user_config_schema(folder / TEMPLATE_FILES[1]),
            user_opts=values,
            user_runtime={"python": {"version": "3.12.1"}},
        )
    )


@pytest.fixture
def engine() -> Iterator[Any]:
    """Makes the engine of a rendered configuration, as the endpoint does when it starts."""
    made: list[Any] = []

    def load(text: str) -> Any:
        config = load_config_yaml(text)
        made.append(config.engine)
        return config.engine

    yield load
    for one in made:
        if type(one).__name__ == "ThreadPoolEngine":
            one.shutdown()


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("values", [LEAST, FULL], ids=["least", "full"])
def test_runs_get_an_encrypted_engine_of_many_workers(name: str, values: dict[str, Any], engine: Any) -> None:
    made = engine(render(templates()[name], values[name]))
    assert type(made).__name__ == "GlobusComputeEngine"
    assert made.encrypted
    provider = made.executor.provider
    assert (provider.min_blocks, provider.nodes_per_block) == (0, values[name].get("nodes_per_block", 1))
    assert f". {pwd.getpwuid(os.getuid()).pw_dir}/hpcagent-endpoint/bin/activate\n" in provider.worker_init
    if name != "machine":
        assert provider.walltime == values[name].get("walltime", "01:00:00")  # not 5400, YAML's base 60
    if name == "slurm" and values is FULL:
        for line in ("account=m1234", "partition=debug", "qos=high", "constraint=cpu&a100", "gpus-per-node=4"):
            assert f"#SBATCH --{line}\n" in provider.scheduler_options + "\n"
        assert type(provider.launcher).__name__ == "SrunLauncher"
    if name == "pbs" and values is FULL:
        assert (provider.account, provider.queue, provider.select_options) == ("m1234", "debug", "ngpus=4")
        lines = provider.scheduler_options.splitlines()
        assert [line.strip() for line in lines if line.strip()] == [
            "#PBS -l place=scatter",
            "#PBS -l filesystems=home:eagle",
        ]
        assert all(line == line.strip() for line in lines), "a directive has to begin its line"


@pytest.mark.parametrize("name", NODES)
def test_mpi_runs_get_the_mpi_engine_with_the_launcher_it_needs(name: str, engine: Any) -> None:
    made = engine(render(templates()[name], {**FULL[name], "role": "mpi"}))
    assert type(made).__name__ == "GlobusMPIEngine"
    assert made.encrypted
    assert made.executor.mpi_launcher == ("srun" if name == "slurm" else "mpiexec")
    assert type(made.executor.provider.launcher).__name__ == "SimpleLauncher"


@pytest.mark.parametrize("name", NODES)
def test_errands_get_two_threads_and_no_job(name: str, engine: Any) -> None:
    made = engine(render(templates()[name], {"role": "control"}))
    assert type(made).__name__ == "ThreadPoolEngine"
    assert made.executor._max_workers == 2


@pytest.mark.parametrize("name", NODES)
def test_an_environment_of_ones_own_is_quoted_for_the_shell(name: str) -> None:
    text = render(templates()[name], {**LEAST[name], "venv": "/opt/my+env"})
    init = yaml.safe_load(text)["engine"]["provider"]["worker_init"]
    assert shlex.split(init)[:2] == [".", "/opt/my+env/bin/activate"]


HOSTILE = [
    "$(touch /tmp/x)",
    "`id`",
    "a b",
    "a;id",
    "m1\n#SBATCH --uid=0",
    "m1\nid",
    "m1\n",
    '"; id; "',
    "'x'",
    "{{ 7*7 }}",
    "a\\nb",
    "",
    "-x",
    "é",
    "a" * 2000,
    7,
    None,
    ["a"],
    {"a": "b"},
    True,
]


@pytest.mark.parametrize("name", NODES)
def test_hostile_values_are_refused_by_the_schema(name: str) -> None:
    folder = templates()[name]
    properties = json.loads((folder / TEMPLATE_FILES[1]).read_text())["properties"]
    texts = [key for key, kind in properties.items() if kind["type"] == "string"]
    numbers = [key for key, kind in properties.items() if kind["type"] != "string"]
    assert texts and numbers
    for key in texts:
        for value in HOSTILE:
            with pytest.raises(jsonschema.ValidationError):
                render(folder, {**LEAST[name], key: value})
    for key in numbers:
        for value in ("1", "$(id)", None, -1, [1], True, float("inf")):
            with pytest.raises(jsonschema.ValidationError):
                render(folder, {**LEAST[name], key: value})
    with pytest.raises(jsonschema.ValidationError, match="unexpected"):
        render(folder, {**LEAST[name], "worker_init": "id"})


def test_the_template_alone_keeps_a_hostile_environment_a_word_of_the_shell() -> None:
    """Where somebody removed the schema: what goes into the shell is quoted all the same."""
    folder = templates()["machine"]
    me = pwd.getpwuid(os.getuid())
    text = render_config_user_template(
        parent_config=CoreEndpointConfig(),
        user_config_template=load_user_config_template(folder / TEMPLATE_FILES[0]),
        user_config_template_path=folder / TEMPLATE_FILES[0],
        mapped_identity=SimpleNamespace(local_user_record=me, matched_identity="x"),
        user_opts={"venv": "/x'; $(touch y) \"\n"},
    )
    init = yaml.safe_load(text)["engine"]["provider"]["worker_init"]
    assert shlex.split(init) == [".", "/x'; $(touch y) \"\n/bin/activate"]


def test_what_pbs_cannot_do_without_is_asked_for() -> None:
    with pytest.raises(jsonschema.ValidationError, match="'cpus_per_node' is a required property"):
        render(templates()["pbs"], {"role": "workers"})


@pytest.mark.parametrize("name", NODES)
def test_the_schemas_are_schemas(name: str) -> None:
    schema = json.loads((templates()[name] / TEMPLATE_FILES[1]).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False


def test_a_template_is_copied_once(tmp_path: Path) -> None:
    copied = copy_template("slurm", tmp_path / "new")
    assert [path.name for path in copied] == list(TEMPLATE_FILES)
    assert render(tmp_path / "new", {}) == render(templates()["slurm"], {})
    with pytest.raises(BadInput, match="is there already"):
        copy_template("slurm", tmp_path / "new")
    with pytest.raises(BadInput, match="did you mean 'slurm'"):
        copy_template("slrum", tmp_path)
