"""A campaign's space may be given as parameters or as a Space: ranges within the app's contract."""

from __future__ import annotations

import pytest

import hpcagent as ha
from hpcagent.errors import BadInput

GOAL = ha.maximize("value")


def test_parameters_and_a_space_say_what_tables_say() -> None:
    tables = {"x": {"low": 0.1, "high": 0.5}, "style": {"choices": ["plain", "tuned"]}}
    given = {"x": ha.Float(0.1, 0.5), "style": ha.Choice("plain", "tuned")}
    wanted = ha.Campaign(ha.apps.synthetic, GOAL, space=tables)
    assert ha.Campaign(ha.apps.synthetic, GOAL, space=given) == wanted
    assert ha.Campaign(ha.apps.synthetic, GOAL, space=ha.Space.of(**given)) == wanted
    assert wanted.search["x"].range == "[0.1, 0.5]"


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"x": ha.Float(0.1, 0.5, unit="m")}, "space.x: leave out unit"),
        ({"x": ha.Float(0.0, 99.0)}, "x=0 is outside"),
        ({"z": ha.Float(0.0, 1.0)}, "z"),
        (ha.Space.of(x=ha.Float(0.1, 0.5), y=ha.Float(0.1, 0.5), constraints=["x < y"]), "constraints="),
    ],
)
def test_what_only_the_contract_says_is_refused(space: object, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        ha.Campaign(ha.apps.synthetic, GOAL, space=space)
    assert says in str(refused.value)
