"""Python's collector of garbage looks at what is new, not at all that was imported before."""

from __future__ import annotations

import gc

__all__ = ["Aside"]

SELDOM = 50
"""Collections of the middle generation before a full one, where what is new are records that stay."""


class Aside:
    """Sets aside the objects that the collector need not look at, until they are given back.

    A full collection looks at every object of the process, some 50 to 100 ms of modules alone, again and again
    while records grow. Cycles among what was set aside are collected when it is given back. Where somebody has set
    objects aside before (`gc.freeze`), another campaign of this process for one, nothing is done.

    Example:
        >>> before = gc.get_threshold()
        >>> aside = Aside()
        >>> aside.set(growing=True)
        >>> aside.give_back()
        >>> gc.get_threshold() == before
        True
    """

    def __init__(self) -> None:
        self._mine = gc.isenabled() and not gc.get_freeze_count()
        self._before = self._set = gc.get_threshold()

    def set(self, *, growing: bool = False) -> None:
        """Set aside what there is now; `growing`: what comes stays as well, and is looked at seldom."""
        if not self._mine:
            return
        if growing:
            young, middle, old = self._before
            gc.set_threshold(young, middle, max(old, SELDOM))
            self._set = gc.get_threshold()
        gc.freeze()

    def give_back(self) -> None:
        """Have the collector look at everything again."""
        if self._mine:
            # What somebody has set meanwhile stays.
            now = zip(gc.get_threshold(), self._set, self._before, strict=True)
            gc.set_threshold(*(before if is_ == set_ else is_ for is_, set_, before in now))
            gc.unfreeze()
