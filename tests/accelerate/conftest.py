"""Models run their updates without compiling, unless a test requests it."""

from __future__ import annotations

import pytest

from hotloop.accelerate.acceleration import SETTINGS


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "execution", "eager")
