"""Who should act, worked out by hand."""

import pytest

from hotloop.rollouts.forecast import Measured
from hotloop.rollouts.inference.forecast import ASKING_S, choose_inference

# A network that takes 1 ms however many ask, up to 8: acting for few is dear.
DEAR = {1: 1e-3, 2: 1e-3, 4: 1e-3, 8: 1e-3}


def test_few_environments_each_and_a_network_that_is_dear():
    measured = Measured(step_s=1e-3, act_s=DEAR)
    choice = choose_inference(measured, num_workers=8, envs_per_worker=1, num_cores=2)
    # Two cores step and act in 2 ms; or step in 1, act in a quarter of one, and ask.
    assert choice.rates["worker"] == pytest.approx(1_000)
    assert choice.rates["central"] == pytest.approx(2 / (1e-3 + 0.25e-3 + ASKING_S))
    assert choice.inference == "central"
    assert "one process acts for all workers (auto): 1,481 steps/s" in choice.summary


def test_enough_environments_each():
    measured = Measured(step_s=1e-3, act_s=DEAR)
    choice = choose_inference(measured, num_workers=2, envs_per_worker=8, num_cores=2)
    assert choice.inference == "worker"


def test_a_process_that_can_not_act_for_all():
    measured = Measured(step_s=10e-3, busy_share=0.01, act_s={1: 1e-3, 64: 64e-3})
    choice = choose_inference(measured, num_workers=64, envs_per_worker=1, num_cores=64)
    assert choice.rates["central"] == pytest.approx(1 / (1e-3 + ASKING_S / 2))
    assert choice.inference == "worker"


def test_workers_that_wait_for_their_environments_act_meanwhile():
    measured = Measured(step_s=10e-3, busy_share=0.0, act_s={1: 5e-3, 4: 5e-3, 8: 5e-3})
    choice = choose_inference(measured, num_workers=8, envs_per_worker=1, num_cores=8)
    assert choice.rates["worker"] == pytest.approx(8 / 15e-3)
    assert choice.rates["central"] == pytest.approx(8 / 10e-3, rel=0.1)
    assert choice.inference == "central"
