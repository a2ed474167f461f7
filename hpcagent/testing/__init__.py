"""Contract suites for people who write their own policy, app or site. Needs pytest."""

from __future__ import annotations

from hpcagent.testing.policy_suite import PolicyContract

__all__ = ["PolicyContract"]
