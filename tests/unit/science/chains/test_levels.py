"""What a chain hands on to the runs it is made of."""

from __future__ import annotations

import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.chains.levels import level_of, level_of_engine, own_settings
from hpcagent.science.engines.base import LEVEL

DEFAULTS = {name: parameter.default for name, parameter in LEVEL.items()}


def test_only_the_level_and_the_cores_are_handed_on():
    given = {"engine": "emt", "ecut": 300.0, "ranks": 4, "threads": 2, "metal": "Cu", "site": "fcc"}
    assert level_of(given) == {"engine": "emt", "ecut": 300.0, "ranks": 4, "threads": 2}


def test_what_an_engine_does_not_take_is_left_out_and_named():
    level, notes = level_of_engine(DEFAULTS | {"engine": "emt", "xc": "PBE", "kpts": 4, "ranks": 2})
    assert level["engine"] == "emt" and level["ranks"] == 2
    assert not {"xc", "kpts"} & set(level)
    assert notes == ("engine emt has no use for xc, kpts",)


def test_what_an_engine_takes_stays_and_nothing_is_noted():
    wanted = DEFAULTS | {"engine": "gpaw", "xc": "PBE", "ecut": 350.0, "kpts": 4, "smearing": 0.1}
    assert level_of_engine(wanted) == (wanted, ())


def test_defaults_are_no_wish_of_the_user_and_are_not_noted():
    assert level_of_engine(DEFAULTS | {"engine": "lj"}) == (DEFAULTS | {"engine": "lj"}, ())


def test_repairs_are_for_every_engine():
    level, notes = level_of_engine(DEFAULTS | {"engine": "emt", "repairs": 0})
    assert level["repairs"] == 0 and notes == ()


def test_an_engine_that_is_not_known_is_refused():
    with pytest.raises(AppFailed, match="'emd' is not known"):
        level_of_engine(DEFAULTS | {"engine": "emd"})


def test_settings_go_on_as_they_are_and_files_by_their_paths():
    settings = {
        "keywords": {"h": 0.2},
        "checkpoint": "model.pt",
        "files": {"checkpoint": "abc123"},
        "paths": {"checkpoint": "/models/model.pt"},
    }
    assert own_settings(settings) == {"keywords": {"h": 0.2}, "checkpoint": "/models/model.pt"}
