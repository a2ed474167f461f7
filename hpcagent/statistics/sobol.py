"""Scrambled Sobol' points: those of `scipy.stats.qmc.Sobol`, to the last bit, without the import of scipy.stats.

Sobol', USSR Comput. Math. Math. Phys. 7 (1967) 86; Gray-code order by Antonov and Saleev, ibid. 19 (1979) 252;
scrambled by a lower triangular matrix and a digital shift (Matousek, J. Complexity 14 (1998) 527).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcagent.later import Later

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Later("numpy")

__all__ = ["scrambled_sobol"]

# Of every dimension after the first: its primitive polynomial over GF(2), and its first direction numbers.
# Joe and Kuo, SIAM J. Sci. Comput. 30 (2008) 2635, new-joe-kuo-6.21201.
# fmt: off
_DIRECTIONS = (
    (3, 1), (7, 1, 3), (11, 1, 3, 1), (13, 1, 1, 1), (19, 1, 1, 3, 3), (25, 1, 3, 5, 13), (37, 1, 1, 5, 5, 17),
    (41, 1, 1, 5, 5, 5), (47, 1, 1, 7, 11, 19), (55, 1, 1, 5, 1, 1), (59, 1, 1, 1, 3, 11), (61, 1, 3, 5, 5, 31),
    (67, 1, 3, 3, 9, 7, 49), (91, 1, 1, 1, 15, 21, 21), (97, 1, 3, 1, 13, 27, 49), (103, 1, 1, 1, 15, 7, 5),
    (109, 1, 3, 1, 15, 13, 25), (115, 1, 1, 5, 5, 19, 61), (131, 1, 3, 7, 11, 23, 15, 103),
    (137, 1, 3, 7, 13, 13, 15, 69), (143, 1, 1, 3, 13, 7, 35, 63), (145, 1, 3, 5, 9, 1, 25, 53),
    (157, 1, 3, 1, 13, 9, 35, 107), (167, 1, 3, 1, 5, 27, 61, 31), (171, 1, 1, 5, 11, 19, 41, 61),
    (185, 1, 3, 5, 3, 3, 13, 69), (191, 1, 1, 7, 13, 1, 19, 1), (193, 1, 3, 7, 5, 13, 19, 59),
    (203, 1, 1, 3, 9, 25, 29, 41), (211, 1, 3, 5, 13, 23, 1, 55), (213, 1, 3, 7, 3, 13, 59, 17),
    (229, 1, 3, 1, 3, 5, 53, 69), (239, 1, 1, 5, 5, 23, 33, 13), (241, 1, 1, 7, 7, 1, 61, 123),
    (247, 1, 1, 7, 9, 13, 61, 49), (253, 1, 3, 3, 5, 3, 55, 33), (285, 1, 3, 1, 15, 31, 13, 49, 245),
    (299, 1, 3, 5, 15, 31, 59, 63, 97), (301, 1, 3, 1, 11, 11, 11, 77, 249), (333, 1, 3, 1, 11, 27, 43, 71, 9),
    (351, 1, 1, 7, 15, 21, 11, 81, 45), (355, 1, 3, 7, 3, 25, 31, 65, 79), (357, 1, 3, 1, 1, 19, 11, 3, 205),
    (361, 1, 1, 5, 9, 19, 21, 29, 157), (369, 1, 3, 7, 11, 1, 33, 89, 185), (391, 1, 3, 3, 3, 15, 9, 79, 71),
    (397, 1, 3, 7, 11, 15, 39, 119, 27), (425, 1, 1, 3, 1, 11, 31, 97, 225), (451, 1, 1, 1, 3, 23, 43, 57, 177),
    (463, 1, 3, 7, 7, 17, 17, 37, 71), (487, 1, 3, 1, 5, 27, 63, 123, 213), (501, 1, 1, 3, 5, 11, 43, 53, 133),
    (529, 1, 3, 5, 5, 29, 17, 47, 173, 479), (539, 1, 3, 3, 11, 3, 1, 109, 9, 69),
    (545, 1, 1, 1, 5, 17, 39, 23, 5, 343), (557, 1, 3, 1, 5, 25, 15, 31, 103, 499),
    (563, 1, 1, 1, 11, 11, 17, 63, 105, 183), (601, 1, 1, 5, 11, 9, 29, 97, 231, 363),
    (607, 1, 1, 5, 15, 19, 45, 41, 7, 383), (617, 1, 3, 7, 7, 31, 19, 83, 137, 221),
    (623, 1, 1, 1, 3, 23, 15, 111, 223, 83), (631, 1, 1, 5, 13, 31, 15, 55, 25, 161),
    (637, 1, 1, 3, 13, 25, 47, 39, 87, 257),
)
# fmt: on
_BITS = 30


def scrambled_sobol(size: int, n: int, seed: int | np.random.Generator) -> NDArray[np.float64]:
    """The first points of a scrambled Sobol' sequence.

    Args:
        size: Dimensions.
        n: Points; only powers of two are balanced.
        seed: Decides the scrambling; of a generator one of its own is made, as scipy does.

    Returns:
        `(n, size)`, in [0, 1).

    Example:
        >>> points = scrambled_sobol(2, 8, 0)
        >>> sorted((points[:, 0] * 8).astype(int).tolist())  # one in each eighth
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    if size > len(_DIRECTIONS) + 1 or n > 2**_BITS:
        from scipy.stats import qmc  # has 21201 dimensions, and is slow to import

        points: NDArray[np.float64] = qmc.Sobol(size, scramble=True, seed=seed).random(n)
        return points
    rng = np.random.default_rng(seed) if isinstance(seed, int) else seed.spawn(1)[0]
    shift = rng.integers(2, size=(size, _BITS), dtype=np.uint32) @ (2 ** np.arange(_BITS, dtype=np.uint32))
    below = np.tril(rng.integers(2, size=(size, _BITS, _BITS), dtype=np.uint32))
    directions = _scrambled(_directions(size), below)
    number = np.arange(n, dtype=np.uint32)
    gray = number ^ (number >> np.uint32(1))
    found = np.broadcast_to(shift, (n, size)).copy()
    for bit in range(int(n - 1).bit_length() if n else 0):
        found[(gray >> np.uint32(bit)) & np.uint32(1) == 1] ^= directions[:, bit]
    scaled: NDArray[np.float64] = found * (1.0 / 2**_BITS)
    return scaled


def _directions(size: int) -> NDArray[np.uint32]:
    """`(size, bits)`: the direction numbers, the first one at the highest bit."""
    found = np.ones((size, _BITS), dtype=np.uint32)
    for row, (polynomial, *first) in zip(found[1:], _DIRECTIONS, strict=False):
        degree = len(first)
        m = list(first)
        for j in range(degree, _BITS):
            new = m[j - degree]
            for k in range(1, degree + 1):
                if polynomial >> (degree - k) & 1:
                    new ^= m[j - k] << k
            m.append(new)
        row[:] = m
    return found << np.arange(_BITS - 1, -1, -1, dtype=np.uint32)


def _scrambled(directions: NDArray[np.uint32], below: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The direction numbers times a lower triangular matrix over GF(2): `below`, with ones on its diagonal."""
    diagonal = np.arange(_BITS)
    below[:, diagonal, diagonal] = 1
    highest_first = np.arange(_BITS - 1, -1, -1, dtype=np.uint32)
    digits = directions[:, :, None] >> highest_first & np.uint32(1)  # (size, which, digit)
    mixed = np.einsum("dpk,djk->djp", below, digits) & np.uint32(1)
    found: NDArray[np.uint32] = (mixed << highest_first).sum(axis=2, dtype=np.uint32)
    return found
