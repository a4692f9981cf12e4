"""Workers of trainings are forked: see `tests.warm_start`."""

import pytest

from tests.warm_start import cold_start, warm_start

__all__ = ["cold_start", "warm_start"]


@pytest.fixture(autouse=True)
def _fork_workers(warm_start):
    pass
