"""Site profiles: found in the documented order, and every mistake named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from hpcagent.sites.htex import _affinity
from hpcagent.sites.profile import ExecutorProfile, Profile, find_profile, list_profiles

LOCAL = 'kind = "local"\ndescription = "{}"\n'


@pytest.fixture(autouse=True)
def _empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HPCAGENT_SITE_PATH", raising=False)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_packaged_profiles_are_found_and_listed() -> None:
    assert find_profile("laptop").kind == "local"
    assert find_profile().executors["workers"].cpu_affinity == "block"
    assert find_profile("threads").kind == "threads"
    assert {"laptop", "threads"} <= {entry.name for entry in list_profiles()}
    assert all(entry.description and entry.source.is_file() for entry in list_profiles())


def test_a_profile_is_looked_for_from_the_working_directory_outwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCAGENT_SITE_PATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    places = [
        tmp_path / "config/hpcagent/sites/laptop.toml",
        tmp_path / "two/laptop.toml",
        tmp_path / "one/laptop.toml",
        Path("laptop.toml"),
        Path("site_profiles/laptop.toml"),
    ]
    for place in places:  # each hides the one before
        write(place, LOCAL.format(place))
        assert find_profile("laptop").description == str(place)
        (listed,) = [entry for entry in list_profiles() if entry.name == "laptop"]
        assert listed.description == str(place)
    explicit = write(tmp_path / "other.toml", LOCAL.format("explicit"))
    assert find_profile(explicit).description == "explicit"
    assert find_profile(str(explicit)).name == "other"


def test_a_profile_object_is_taken_as_it_is() -> None:
    profile = Profile(name="mine", kind="threads")
    assert find_profile(profile) is profile


def test_an_unknown_name_gets_the_nearest_one_and_the_places_searched() -> None:
    with pytest.raises(BadInput, match=r"'labtop'; did you mean 'laptop'\? Looked in site_profiles, "):
        find_profile("labtop")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "local"\nnode_core = 2\n', r"p\.toml: unknown key 'node_core'; did you mean 'node_cores'"),
        (
            'kind = "local"\n[executors.w]\nmax_worker_per_node = 2\n',
            r"p\.toml, executors\.w: unknown key 'max_worker_per_node'; did you mean 'max_workers_per_node'",
        ),
        ('kind = "local"\n[executors.w]\ncores_per_worker = 0\n', r"p\.toml, executors\.w\.cores_per_worker: .*0"),
        ('kind = "local"\n[executors.w]\ncpu_affinity = "blocks"\n', r"did you mean 'block'"),
        ('kind = "local"\n[executors."a b"]\n', r"'a b' must be letters"),
        ('kind = "local"\n[executors]\n', r"executors is empty"),
        ('kind = "threads"\n[executors.w]\nworker_init = "x"\n', r"executors\.w: worker_init has no meaning"),
        ('kind = "slurmm"\n', r"p\.toml, kind: .*'slurmm'"),
        ("description = ''\n", r"p\.toml: the key 'kind' is missing"),
        ("kind = local\n", r"p\.toml: not valid TOML: .*line 1"),
    ],
)
def test_a_mistake_is_named_with_file_key_and_what_is_right(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        find_profile(write(tmp_path / "p.toml", text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.toml: no such file"):
        find_profile(tmp_path / "nowhere.toml")


def test_other_toml_files_beside_the_user_are_not_listed_but_broken_profiles_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path("my_campaign.toml"), "app = 'md'\n")
    monkeypatch.setenv("HPCAGENT_SITE_PATH", str(tmp_path / "sites"))
    write(tmp_path / "sites/broken.toml", "kind = 1\n")
    entries = {entry.name: entry.description for entry in list_profiles()}
    assert "my_campaign" not in entries
    assert entries["broken"].startswith("not usable: ")


def test_a_profile_may_name_several_executors(tmp_path: Path) -> None:
    text = 'kind = "local"\nlammps = ["mpiexec", "-n", "2", "lmp"]\n[executors.md]\n[executors.analysis]\n'
    profile = find_profile(write(tmp_path / "p.toml", text))
    assert profile.executor_names == ("md", "analysis")
    assert profile.lammps == ("mpiexec", "-n", "2", "lmp")
    with pytest.raises(Exception, match="frozen"):
        profile.name = "x"  # type: ignore[misc]


def test_workers_get_cores_of_their_own_in_turn() -> None:
    assert _affinity(2, [0, 1, 2, 3], 1) == "0:1"  # not two each, as Parsl's "block" would
    assert _affinity(2, [4, 5, 6, 7], 2) == "4,5:6,7"
    assert _affinity(3, [0, 1], 1) == "0:1:0"  # more workers than cores: around again


def test_the_documented_defaults_hold() -> None:
    executor = ExecutorProfile()
    assert (executor.encrypted, executor.prefetch_capacity, executor.cores_per_worker) == (True, 0, 1)
