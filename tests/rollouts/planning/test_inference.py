"""The choice between worker and central inference, computed by hand."""

import pytest

from hotloop.rollouts.planning.forecast import EnvTiming
from hotloop.rollouts.planning.inference import REQUEST_S, choose_inference

# A network that takes 1 ms for any batch up to 8: small batches are expensive.
EXPENSIVE = {1: 1e-3, 2: 1e-3, 4: 1e-3, 8: 1e-3}


def test_few_environments_with_an_expensive_network_choose_central():
    measured = EnvTiming(step_s=1e-3, act_s=EXPENSIVE)
    choice = choose_inference(measured, num_workers=8, envs_per_worker=1, num_cores=2)
    # Two cores step and act in 2 ms, or step in 1 ms, act in a quarter of one, and send requests.
    assert choice.rates["worker"] == pytest.approx(1_000)
    assert choice.rates["central"] == pytest.approx(2 / (1e-3 + 0.25e-3 + REQUEST_S))
    assert choice.inference == "central"
    assert "one process acts for all workers (auto): forecast 1,481 steps/s" in choice.summary


def test_enough_environments_per_worker_choose_worker():
    measured = EnvTiming(step_s=1e-3, act_s=EXPENSIVE)
    choice = choose_inference(measured, num_workers=2, envs_per_worker=8, num_cores=2)
    assert choice.inference == "worker"


def test_an_overloaded_inference_process_is_not_chosen():
    measured = EnvTiming(step_s=10e-3, busy_share=0.01, act_s={1: 1e-3, 64: 64e-3})
    choice = choose_inference(measured, num_workers=64, envs_per_worker=1, num_cores=64)
    assert choice.rates["central"] == pytest.approx(1 / (1e-3 + REQUEST_S / 2))
    assert choice.inference == "worker"


def test_one_environment_waits_for_its_actions():
    measured = EnvTiming(step_s=40e-3, busy_share=0.0, act_s={1: 20e-3, 8: 20e-3})
    choice = choose_inference(measured, num_workers=6, envs_per_worker=1, num_cores=8)
    assert choice.rates["worker"] == pytest.approx(6 / 60e-3)
    # Half of the running batch, and its own batch.
    assert choice.rates["central"] == pytest.approx(6 / (40e-3 + 30e-3 + REQUEST_S))
    assert choice.inference == "worker"


@pytest.mark.parametrize("is_divided", [True, False])
def test_one_half_steps_while_the_other_waits(is_divided):
    steps_together = None if is_divided else 4
    act_s = {1: 20e-3, 4: 20e-3, 8: 20e-3}
    measured = EnvTiming(step_s=20e-3, busy_share=0.0, act_s=act_s, steps_together=steps_together)
    choice = choose_inference(measured, num_workers=4, envs_per_worker=4, num_cores=8)
    assert choice.rates["worker"] == pytest.approx(4 / 25e-3)
    central = 16 / 80e-3 if is_divided else 16 / (80e-3 + 30e-3 + REQUEST_S)
    assert choice.rates["central"] == pytest.approx(central)


def test_the_loop_of_a_group_counts():
    measured = EnvTiming(step_s=1e-3, loop_s=3e-3, act_s={1: 1e-3})
    choice = choose_inference(measured, num_workers=1, envs_per_worker=1, num_cores=1)
    assert choice.rates["worker"] == pytest.approx(1 / 5e-3)
    # The worker waits for its batch and for half of another one.
    assert choice.rates["central"] == pytest.approx(1 / (4e-3 + 1.5e-3 + REQUEST_S))


def test_a_timing_names_each_group_once():
    measured = EnvTiming(step_s=1e-3, step_p99_s=2e-3, act_s={1: 1e-5, 4: 4e-5})
    assert measured.describe(1, 4, 4) == (
        "a step takes 1.00 ms (sd 0 ns, p99 2.00 ms, 100% computing), acting for one environment "
        "10.0 µs, acting for 4 environments 40.0 µs"
    )
