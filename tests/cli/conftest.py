"""Workers of trainings are forked (see `tests.warm_start`); curves are drawn in the test's process.

tests/runs/test_background_plot.py draws them in another process, as trainings do for users.
"""

import pytest

from tests.warm_start import cold_start, warm_start

__all__ = ["cold_start", "warm_start"]


@pytest.fixture(autouse=True)
def _fork_workers(warm_start):
    pass


@pytest.fixture(autouse=True)
def _draw_here(monkeypatch):
    monkeypatch.setattr("hotloop.training.background_plot.BackgroundPlot._start", lambda *_: None)
