"""Declarations of algorithms: what is wrong with one is said before anything is learned."""

import dataclasses
from typing import NamedTuple

import pytest

from hotloop.algorithms import ALGORITHMS, dqn, find, ppo
from hotloop.errors import ConfigError
from hotloop.training import OffPolicy, OnPolicy, Update
from hotloop.training.algorithm import hyper_of
from tests import toy_envs

DQN = {
    "total_timesteps": 100,
    "learning_starts": 20,
    "batch_size": 16,
    "hidden_sizes": (8,),
    "train_frequency": 1,
    "update_to_data": 1.0,
}


class Hyper(NamedTuple):
    """One option that there is not."""

    learning_rate: float
    momentum: float


def declared(kind, algorithm, **changes):
    """The algorithm, declared anew with other parts."""
    fields = {one.name: getattr(algorithm, one.name) for one in dataclasses.fields(algorithm)}
    return kind(**{**fields, **changes})


def train(algorithm, tmp_path, **options):
    config = algorithm.config(run_dir=str(tmp_path / "run"), execution="eager", **options)
    return algorithm.train(config, env=toy_envs.ChooseTheSign)


def own_update(state, batch, noise, hyper, *, nets, config):
    """DQN's, without the errors."""
    return dqn.update(state, batch, noise, hyper, nets=nets, config=config)[0]


@pytest.mark.parametrize(
    ("kind", "algorithm", "changes", "message"),
    [
        (OnPolicy, ppo.algorithm, {"update": None}, "'ppo' must have `update`, a function, got No"),
        (OnPolicy, ppo.algorithm, {"prepare": 3}, "'ppo' must have `prepare`, a function, got 3"),
        (OffPolicy, dqn.algorithm, {"init": "init"}, "'dqn' must have `init`, a function, got 'in"),
        (OffPolicy, dqn.algorithm, {"updates": ()}, "'dqn' must have an update, got none"),
    ],
)
def test_parts_that_are_missing(kind, algorithm, changes, message):
    with pytest.raises(ConfigError, match=message):
        declared(kind, algorithm, **changes)


def test_a_hyper_parameter_is_an_option():
    config = dqn.Config(learning_rate=0.1, gamma=0.9)
    with pytest.raises(ConfigError, match=r"`momentum` of tests.*Hyper is no option of its Config"):
        hyper_of(Hyper, config)
    # What is switched off is 0, and γ is in the batches already where they are of n steps.
    assert (
        hyper_of(dqn.Hyper, config)._asdict().items() >= {"gamma": 0.9, "max_grad_norm": 0}.items()
    )
    assert hyper_of(dqn.Hyper, dataclasses.replace(config, n_step=3)).gamma == 1.0


def test_what_acts_must_be_in_the_state(tmp_path):
    algorithm = dataclasses.replace(dqn.algorithm, acting="parameters")
    with pytest.raises(ConfigError, match="acting network's parameters as `parameters`, a tensor"):
        train(algorithm, tmp_path, **DQN)
    assert not (tmp_path / "run").exists()


def test_drawing_by_td_error_needs_one(tmp_path):
    algorithm = dataclasses.replace(dqn.algorithm, updates=(Update(function=own_update),))
    with pytest.raises(
        ConfigError, match=r"the updates of 'dqn' give none: return `metrics, td_er"
    ):
        train(algorithm, tmp_path, replay="prioritized", **DQN)
    assert train(algorithm, tmp_path, **DQN).policy.version == 81


def test_an_update_that_replaces_what_it_should_change(tmp_path):
    def replaces(state, batch, noise, hyper, *, nets, config):
        metrics = own_update(state, batch, noise, hyper, nets=nets, config=config)
        state.params = state.params + 1.0
        return metrics

    algorithm = dataclasses.replace(dqn.algorithm, updates=(Update(function=replaces),))
    with pytest.raises(ConfigError, match="in place, but replaces `params`"):
        train(algorithm, tmp_path, **DQN)


def test_several_updates_are_made_in_order_each_when_it_is_due(tmp_path):
    made = []

    def noted(state, batch, noise, hyper, *, nets, config):
        made.append(None if noise is None else tuple(noise.shape))
        return {"loss_of_another": (batch.reward * 0).mean()}

    updates = (
        Update(function=own_update),
        Update(function=noted, name="another", every="train_frequency", times="n_step"),
        Update(function=noted, name="noisy", has_noise=True),
    )
    algorithm = dataclasses.replace(dqn.algorithm, updates=updates)
    result = train(algorithm, tmp_path, **{**DQN, "train_frequency": 3, "n_step": 2})
    # Each is tried once, on copies, before it is first made.
    num = result.policy.version
    assert made.count(None) == 2 * (num // 3) + 1
    assert made.count((16, 1)) == num + 1


def test_hotloops_own_are_found_again_by_name():
    for name in ("ppo", "sac", "td3", "dqn"):
        assert find(name).reference == find(name).name == name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_annotations_are_those_that_python_3_10_accepts(name):
    """There, `get_type_hints` refuses a bare `ClassVar`, and with it every training."""
    for group in find(name).config.__mro__:
        for option, annotation in vars(group).get("__annotations__", {}).items():
            assert annotation != "ClassVar", f"{group.__name__}.{option}"
