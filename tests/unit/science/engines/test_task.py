"""Gaps are found only where there is something to find them in."""

from __future__ import annotations

import math

import pytest

from hpcagent.science.engines.task import gap


@pytest.mark.parametrize(
    ("eigenvalues", "fermi", "expected"),
    [
        # Two k-points: the top of the valence band at the first, the bottom of the conduction band at the second.
        ([[[-5.0, 0.0, 2.0], [-6.0, -0.5, 1.1]]], 0.0, 1.1),
        # The same with a Fermi level in the middle, and one that was rounded down.
        ([[[-5.0, 0.0, 2.0], [-6.0, -0.5, 1.1]]], 0.6, 1.1),
        ([[[-5.0, 0.00004, 2.0]]], 0.0, 1.99996),
        # Spins: the one's conduction band lies below the other's.
        ([[[-1.0, 3.0]], [[-2.0, 0.5]]], 0.0, 1.5),
        # A band that crosses the Fermi level.
        ([[[-5.0, -1.0, 2.0], [-5.0, 0.4, 2.0]]], 0.0, 0.0),
    ],
)
def test_the_gap_lies_between_occupied_and_empty(
    eigenvalues: list[list[list[float]]], fermi: float, expected: float
) -> None:
    assert gap(eigenvalues, fermi) == pytest.approx(expected)


def test_without_empty_bands_there_is_no_gap_to_be_known() -> None:
    # As from pw.x with fixed occupations, which computes no band more than it needs.
    assert math.isnan(gap([[[-5.0, 0.0], [-6.0, -0.5]]], 0.0))


def test_the_gap_of_a_smeared_insulator_is_told_by_its_electrons_not_by_the_fermi_level():
    # Silicon with 9 x 9 x 9 k-points: cold smearing puts the Fermi level below the highest occupied eigenvalue.
    bands = [[[-5.0, 1.0, 6.2195, 6.2195, 7.5], [-3.0, 2.0, 5.0, 5.1, 6.811]]]
    assert gap(bands, 6.181) == 0.0
    assert gap(bands, 6.181, electrons=8) == pytest.approx(0.5915)
    # A metal has overlapping bands, an odd number of electrons a half-filled one, and spins are told by the level.
    assert gap([[[0.0, 3.0], [2.5, 1.0]]], 2.0, electrons=2) == 0.0
    assert gap([[[0.0, 3.0], [1.0, 4.0]]], 0.5, electrons=1) == 0.0
    assert gap(bands * 2, 6.5, electrons=8) == pytest.approx(0.5915)
    assert math.isnan(gap([[[0.0], [1.0]]], 2.0, electrons=2))
