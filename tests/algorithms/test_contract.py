"""hotloop's algorithms keep the contract, and the check finds algorithms that break it."""

import dataclasses
import shutil

import pytest
import torch

from hotloop.algorithms import appo, crossq, dqn, ppo, sac, sac_discrete, td3, tqc
from hotloop.training import check_algorithm

CONTINUOUS = {"env": "Pendulum-v1"}
REPLAY = {"num_envs": 1, "n_step": 3}
MASKS = {"env": "tests.toy_envs:Allowed", "action_masks": True}
RECURRENT = {"sequence_length": 5, "burn_in": 3, "batch_size": 3}
CASES = {
    "ppo": (ppo, {}),
    "ppo normalized": (
        ppo,
        {
            **CONTINUOUS,
            "normalize_obs": True,
            "normalize_reward": True,
            "clip_obs": 5.0,
            "clip_reward": 5.0,
            "eval_interval": 64,
            "eval_episodes": 1,
        },
    ),
    "ppo with memory": (ppo, {**CONTINUOUS, "memory": "lstm:6"}),
    "appo": (appo, {"memory": "gru:6"}),
    "sac": (sac, {**CONTINUOUS, **REPLAY, "replay": "prioritized"}),
    "sac with a subset": (sac, {**CONTINUOUS, "num_critics": 4, "target_critics": 2}),
    "tqc": (tqc, {**CONTINUOUS, **REPLAY, "replay": "prioritized", "num_critics": 3}),
    "crossq": (
        crossq,
        {
            **CONTINUOUS,
            **REPLAY,
            "replay": "prioritized",
            "critic_hidden_sizes": (8,),
            "normalize_obs": True,
        },
    ),
    "discrete sac": (
        sac_discrete,
        {**REPLAY, "replay": "prioritized", "policy_frequency": 2, "num_critics": 3},
    ),
    "discrete sac of images": (
        sac_discrete,
        {"env": "tests.toy_images:Catch", "hidden_sizes": (8,), "batch_size": 4},
    ),
    "td3": (td3, {**CONTINUOUS, "replay": "prioritized", "policy_frequency": 3}),
    "dqn": (
        dqn,
        {**REPLAY, "replay": "prioritized", "dueling": True, "target_interval": 30, "tau": 0.5},
    ),
    "dqn proportional": (
        dqn,
        {"replay": "proportional", "train_frequency": 7, "update_to_data": 0.7},
    ),
    "rainbow": (
        dqn,
        {
            **REPLAY,
            "replay": "prioritized",
            "dueling": True,
            "atoms": 5,
            "noisy_std": 0.5,
            "num_envs": 2,
            "workers": 2,
            "backend": "inline",
        },
    ),
    # Also stopped before learning starts.
    "dqn by rank": (dqn, {"replay": "rank", "learning_starts": 90}),
    "ppo with masks": (ppo, {**MASKS, "env_kwargs": {"choices": [3, 4]}, "normalize_obs": True}),
    "ppo of mixed actions": (ppo, {"env": "tests.toy_envs:MixedSign"}),
    "appo of mixed actions": (appo, {"env": "tests.toy_envs:MixedSign"}),
    "dqn with masks": (dqn, {**MASKS, "n_step": 3}),
    "c51 with masks": (dqn, {**MASKS, "atoms": 4}),
    "ppo of images": (ppo, {"env": "tests.toy_images:Catch", "update_epochs": 1}),
    "dqn of images and numbers": (dqn, {"env": "tests.toy_images:Signs", "network": "impala"}),
    "sac with hindsight": (sac, {"env": "tests.goal_envs:Reach", "hindsight": "future"}),
    "td3 normalized": (td3, {**CONTINUOUS, "normalize_obs": True, "clip_obs": 2.0}),
    "dqn normalized in groups": (
        dqn,
        {"normalize_obs": True, "clip_obs": 2.0, "workers": 2, "backend": "inline"},
    ),
    "sac with memory": (sac, {**CONTINUOUS, **RECURRENT, "memory": "gru:6"}),
    "td3 with memory": (td3, {**CONTINUOUS, **RECURRENT, "memory": "lstm:6"}),
    "tqc with memory": (tqc, {**CONTINUOUS, **RECURRENT, "memory": "gru:6", "num_critics": 2}),
    "dqn with memory": (dqn, {"atoms": 3, **RECURRENT, "memory": "lstm:6"}),
}


@pytest.mark.parametrize("case", CASES)
def test_algorithm_keeps_the_contract(case):
    module, options = CASES[case]
    check_algorithm(module.algorithm, **options)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("module", "options"),
    [
        (appo, {}),
        (ppo, {"env": "tests.toy_envs:MixedSign"}),
        (sac, CONTINUOUS),
        (sac, {**CONTINUOUS, **RECURRENT, "memory": "gru:6"}),
    ],
)
def test_compiled_updates_equal_eager_ones(module, options):
    check_algorithm(module.algorithm, compiled=True, **options)


# --- broken algorithms ----------------------------------------------------------------------------


def update_nothing(state, batch, noise, hyper, *, nets, config):
    return {"loss": state.params.sum()}


def update_with_global_random_numbers(state, batch, noise, hyper, *, nets, config):
    state.params += 0.01 * torch.randn(state.params.shape)
    return {"loss": state.params.sum()}


class UncheckedConfig(ppo.Config):
    def __post_init__(self):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update": update_nothing}, "updates must change the acting network's parameters"),
        ({"config": UncheckedConfig}, "must reject `total_timesteps` 0 .* in `check`, not in `__"),
        (
            {"update": update_with_global_random_numbers},
            "a resumed run must end bit for bit like an uninterrupted one",
        ),
    ],
)
def test_broken_algorithm_is_found(changes, message):
    with pytest.raises(AssertionError, match=message):
        check_algorithm(dataclasses.replace(ppo.algorithm, **changes))


def test_options_without_a_single_update_are_found():
    with pytest.raises(AssertionError, match="the short run makes no update"):
        check_algorithm(dqn.algorithm, learning_starts=191, train_frequency=500)
