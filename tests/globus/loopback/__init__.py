"""Globus Compute on this machine: a stand-in for the web service, a real broker, real endpoints, the real SDK."""

from __future__ import annotations

from .rig import Rig, main, reason_to_skip

__all__ = ["Rig", "main", "reason_to_skip"]
