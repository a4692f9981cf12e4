"""Processes are forked from one that has imported everything, except under `cold_pool`."""

from __future__ import annotations

import pytest

from tests.warm_pool import use_warm_pool


@pytest.fixture
def cold_pool() -> None:
    """Start processes as for users."""


@pytest.fixture(autouse=True)
def warm_pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a sweep."""
    if "cold_pool" not in request.fixturenames:
        use_warm_pool(monkeypatch)
