"""The rig of this folder: a real endpoint, a real broker, and a stand-in for the web service."""

from __future__ import annotations

import importlib.metadata

import pytest

pytestmark = pytest.mark.globus


def test_sdk_and_endpoint_are_of_one_version() -> None:
    assert importlib.metadata.version("globus-compute-sdk") == importlib.metadata.version(
        "globus-compute-endpoint"
    )
