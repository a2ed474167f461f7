"""Policies suggest which points to run next; stop conditions say when to stop; `recommend` says which one won."""

from __future__ import annotations

from hpcagent.policies.base import Policy, make_policy, policy_names

__all__ = ["Policy", "make_policy", "policy_names"]
