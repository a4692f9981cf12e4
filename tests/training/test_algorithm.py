"""Declarations of algorithms: errors are reported before training starts."""

import dataclasses
from typing import NamedTuple

import pytest

from hotloop.algorithms import ALGORITHMS, dqn, find, ppo
from hotloop.errors import ConfigError
from hotloop.training import OffPolicy, OnPolicy, Update
from hotloop.training.learners import hyper_of
from hotloop.training.options import OnPolicyOptions
from tests import toy_envs

DQN = {
    "total_timesteps": 100,
    "learning_starts": 20,
    "batch_size": 16,
    "hidden_sizes": (8,),
    "train_frequency": 1,
    "update_to_data": 1.0,
}


class GammaHyper(NamedTuple):
    """The hyper-parameters of an algorithm that uses γ in addition to the batch's discount."""

    gamma: float


class UnknownHyper(NamedTuple):
    """Hyper-parameters with a name that is no option."""

    learning_rate: float
    momentum: float


def declare(kind, algorithm, **changes):
    """Return the algorithm, declared again with some parts replaced."""
    fields = {part.name: getattr(algorithm, part.name) for part in dataclasses.fields(algorithm)}
    return kind(**{**fields, **changes})


def train(algorithm, tmp_path, **options):
    config = algorithm.config(run_dir=str(tmp_path / "run"), execution="eager", **options)
    return algorithm.train(config, env=toy_envs.ChooseTheSign)


def update_without_errors(state, batch, noise, hyper, *, nets, config):
    """Run DQN's update and leave out the TD errors."""
    return dqn.update(state, batch, noise, hyper, nets=nets, config=config)[0]


@pytest.mark.parametrize(
    ("kind", "algorithm", "changes", "message"),
    [
        (OnPolicy, ppo.algorithm, {"update": None}, "'ppo' must have a function `update`, got No"),
        (OnPolicy, ppo.algorithm, {"prepare": 3}, "'ppo' must have a function `prepare`, got 3"),
        (OffPolicy, dqn.algorithm, {"init": "init"}, "'dqn' must have a function `init`, got 'in"),
        (OffPolicy, dqn.algorithm, {"updates": ()}, "'dqn' must have an update, got none"),
    ],
)
def test_missing_parts_are_refused(kind, algorithm, changes, message):
    with pytest.raises(ConfigError, match=message):
        declare(kind, algorithm, **changes)


def test_an_option_with_the_name_of_a_groups_option_is_refused():
    """Whether actions are masked is read from the group."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(OnPolicyOptions):
        action_masks: bool = False

    with pytest.raises(ConfigError, match=r"`action_masks` of its own.*inherit `MaskOptions`"):
        declare(OnPolicy, ppo.algorithm, config=Config)


def test_hyper_parameters_must_be_options():
    config = dqn.Config(learning_rate=0.1, gamma=0.9)
    with pytest.raises(
        ConfigError, match=r"`momentum` of tests.*Hyper is not an option of its Config"
    ):
        hyper_of(UnknownHyper, config)
    # A disabled option is 0. The number of steps changes nothing.
    assert hyper_of(dqn.Hyper, config) == dqn.Hyper(0.1, tau=1.0, max_grad_norm=0.0)
    assert hyper_of(GammaHyper, dataclasses.replace(config, n_step=3)).gamma == 0.9


def test_acting_parameters_must_be_in_the_state(tmp_path):
    algorithm = dataclasses.replace(dqn.algorithm, acting="parameters")
    with pytest.raises(ConfigError, match="must have a tensor `parameters` with the acting"):
        train(algorithm, tmp_path, **DQN)
    assert not (tmp_path / "run").exists()


def test_prioritized_replay_needs_td_errors(tmp_path):
    algorithm = dataclasses.replace(
        dqn.algorithm, updates=(Update(function=update_without_errors),)
    )
    with pytest.raises(
        ConfigError, match=r"the updates of 'dqn' return none: return `metrics, td_er"
    ):
        train(algorithm, tmp_path, replay="prioritized", **DQN)
    assert train(algorithm, tmp_path, **DQN).policy.version == 81


def test_update_that_replaces_a_tensor_is_refused(tmp_path):
    def replace_params(state, batch, noise, hyper, *, nets, config):
        metrics = update_without_errors(state, batch, noise, hyper, nets=nets, config=config)
        state.params = state.params + 1.0
        return metrics

    algorithm = dataclasses.replace(dqn.algorithm, updates=(Update(function=replace_params),))
    with pytest.raises(ConfigError, match="in place, but replaces `params`"):
        train(algorithm, tmp_path, **DQN)


def test_several_updates_run_in_order_at_their_intervals(tmp_path):
    noise_shapes = []

    def record_noise(state, batch, noise, hyper, *, nets, config):
        noise_shapes.append(None if noise is None else tuple(noise.shape))
        return {"loss_of_another": (batch.reward * 0).mean()}

    updates = (
        Update(function=update_without_errors),
        Update(function=record_noise, name="another", every="train_frequency", times="n_step"),
        Update(function=record_noise, name="noisy", has_noise=True),
    )
    algorithm = dataclasses.replace(dqn.algorithm, updates=updates)
    result = train(algorithm, tmp_path, **{**DQN, "train_frequency": 3, "n_step": 2})
    # Each update runs once on copies before its first real call.
    num_updates = result.policy.version
    assert noise_shapes.count(None) == 2 * (num_updates // 3) + 1
    assert noise_shapes.count((16, 1)) == num_updates + 1


def test_built_in_algorithms_are_found_by_name():
    for name in ("ppo", "sac", "td3", "dqn"):
        assert find(name).reference == find(name).name == name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_annotations_work_on_python_3_10(name):
    """`get_type_hints` of Python 3.10 rejects a bare `ClassVar`, so no training would start."""
    for group in find(name).config.__mro__:
        for option, annotation in vars(group).get("__annotations__", {}).items():
            assert annotation != "ClassVar", f"{group.__name__}.{option}"
