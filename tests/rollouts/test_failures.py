import warnings
from types import SimpleNamespace

import pytest

from hotloop.errors import EnvironmentFailure, SpaceError
from hotloop.rollouts.failures import Failures, compare_spaces


def test_similar_failures_warn_once_and_are_counted():
    failures = Failures(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failures.count("worker 1", "episode 12 failed")
        failures.count("worker 2", "episode 345 failed")
        failures.count("worker 2", "out of memory")
    assert [str(warning.message) for warning in caught] == [
        "worker 1: episode 12 failed: replaced; similar failures are only counted",
        "worker 2: out of memory: replaced; similar failures are only counted",
    ]
    assert (failures.num_failures, failures.last_failure) == (3, "worker 2: out of memory")
    with pytest.raises(EnvironmentFailure, match="failed 4 times, but at most 3") as raised:
        failures.count("worker 0", "it died", traceback="line 7")
    assert "line 7" in str(raised.value.__cause__)


def test_an_error_in_the_same_step_of_many_processes_ends_the_run():
    failures = Failures(1_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(50):  # kills and hangs have no traceback
            failures.count_worker(0, 7, "its process ended with SIGKILL")
        for row in range(50):
            failures.count_worker(0, row, "it raised", "line 7")
        for _ in range(9):
            failures.count_worker(1, 3, "it raised", "line 7")
        with pytest.raises(
            EnvironmentFailure, match=r"10 processes of worker 1 .* same step"
        ) as raised:
            failures.count_worker(1, 3, "it raised", "line 7")
    assert "line 7" in str(raised.value.__cause__)
    assert failures.restarts == {0: 100, 1: 10}


@pytest.mark.parametrize("name", ["observation", "action"])
def test_workers_must_have_equal_spaces(name):
    first = SimpleNamespace(obs_spec={"shape": [2]}, action_spec={"n": 3})
    compare_spaces(first, first, 1)
    field = {"observation": "obs_spec", "action": "action_spec"}[name]
    other = SimpleNamespace(**{**vars(first), field: {"shape": [5]}})
    with pytest.raises(SpaceError, match=f"same {name} space, but worker 0 .* worker 4 has .*5"):
        compare_spaces(first, other, 4)
