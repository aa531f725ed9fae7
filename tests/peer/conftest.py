"""The environments that hold msprobe."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def peer_python() -> str:
    """The interpreter of the environment that holds msprobe 8.1.0."""
    found = os.environ.get("MSFORMAT_PEER_PYTHON")
    if not found:
        pytest.fail("set MSFORMAT_PEER_PYTHON, or run: make test-peer")
    return found


@pytest.fixture(scope="session")
def peer26_python() -> str:
    """The interpreter of the environment that holds msprobe 26.2.0."""
    found = os.environ.get("MSFORMAT_PEER26_PYTHON")
    if not found:
        pytest.skip("MSFORMAT_PEER26_PYTHON is not set: make test-peer-26 judges with msprobe 26.2.0")
    return found
