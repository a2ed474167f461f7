"""What every site profile must keep, as a test class to inherit.

from hpcagent.testing import SiteContract

class TestOurCluster(SiteContract):
    profile = "our_cluster"
    live = True  # on its login node: opens the site, and runs a job in each kind of worker
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from hpcagent.model.base import build
from hpcagent.sites.block import block_of
from hpcagent.sites.doctor import examine
from hpcagent.sites.limits import most_blocks
from hpcagent.sites.profile import Profile, account_of, check_where
from hpcagent.sites.profiles import find_profile, list_profiles
from hpcagent.sites.tables import walltime_s

__all__ = ["SiteContract"]


class SiteContract:
    """Inherit, set `profile`, and pytest runs the contract.

    Attributes:
        profile: Its name or path.
        live: Whether this machine is that site: it is opened, and runs are sent.
        within_s: So long a job may wait and start where it is live.
    """

    profile: ClassVar[str | Path]
    live: ClassVar[bool] = False
    within_s: ClassVar[float] = 600.0

    @pytest.fixture
    def its(self) -> Profile:
        """The profile."""
        return find_profile(self.profile)

    def test_it_says_what_it_is(self, its: Profile) -> None:
        assert its.description and its.executors
        if not str(self.profile).endswith(".toml"):
            assert str(self.profile) in {entry.name for entry in list_profiles()}

    def test_it_is_read_back_from_its_record(self, its: Profile) -> None:
        assert build(Profile, its.model_dump(mode="json", exclude_unset=True), where="record") == its

    def test_no_account_is_written_down(self, its: Profile) -> None:
        assert its.account is None, "a profile that others read names no account; they give --account"

    def test_every_executor_has_jobs_that_its_queue_takes(self, its: Profile) -> None:
        for label in its.executors if its.batch else ():
            block = block_of(its, label)
            assert block.walltime_s > 0 and most_blocks(its, label).max_blocks >= 1
            limits = block.limits
            if limits is not None:
                longest = limits.walltime_limit(block.nodes_per_block)
                assert longest is None or block.walltime_s <= walltime_s(longest)
                assert limits.min_nodes <= block.nodes_per_block <= (limits.max_nodes or block.nodes_per_block)
            if block.node is not None and block.cores_per_node is not None:
                assert block.usable_cores is not None and block.usable_cores <= block.node.cores

    def test_somebody_may_run_a_coordinator_somewhere(self, its: Profile) -> None:
        for where in its.coordinator.where:
            check_where(its, where)
        assert its.coordinator.where
        if its.batch:
            assert account_of(its, "guests") == "guests"

    def test_the_doctor_finds_nothing_wrong(self, its: Profile, tmp_path: Path) -> None:
        if not self.live:
            pytest.skip("this machine is not said to be that site: live = True")
        wrong = [str(c) for c in examine(its, run_dir=tmp_path, within_s=self.within_s) if c.status == "FAIL"]
        assert not wrong
