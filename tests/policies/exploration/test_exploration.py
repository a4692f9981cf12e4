import dataclasses
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hotloop.errors import ConfigError
from hotloop.policies import (
    ActingPolicy,
    EpsilonGreedy,
    Exploration,
    GaussianNoise,
    PolicySnapshot,
    actor_critic,
)
from hotloop.policies.exploration import exploration_from_json
from hotloop.policies.heads import Categorical, Deterministic, MultiCategorical
from tests.policies.nets import Spaces
from tests.policies.test_actors import make_actor
from tests.policies.test_policies import BOX, DISCRETE, MULTI, obs_spec


@dataclass(frozen=True, kw_only=True)
class Kick(Exploration):
    """A user's kind: a push of the same size in every n-th step of each environment."""

    size: float
    every: int = 2

    def action_noise(self, head, seed, **block):
        steps = np.arange(block["first_step"], block["first_step"] + block["num_steps"])
        is_kick = np.repeat((steps % self.every == 0)[:, None], block["num_envs"], axis=1)
        return np.where(is_kick[..., None], np.full(head.size, self.size, np.float32), 0.0)


def make_policy(kind, exploration):
    network = make_actor(kind)
    snapshot = PolicySnapshot(0, network.initial_parameters(0))
    return ActingPolicy(network, snapshot, exploration=exploration)


def test_a_kind_of_the_users_adds_its_noise():
    policy = make_policy("deterministic", Kick(size=0.25, random_steps=1))
    noise = policy.draw_noise(3, first_step=0, num_steps=4, num_envs=2)
    np.testing.assert_array_equal(noise[..., -1], [[1, 1], [0, 0], [0, 0], [0, 0]])
    actions = np.empty((3, 2, 2, 1), np.float32)
    for t in range(3):
        policy.choose(np.zeros((2, 2), np.float32), noise[t + 1], actions[t])
    # The centers of the bounds are 0 and 2.5, half their widths 0.5 and 1.5.
    np.testing.assert_allclose(actions[0, :, :, 0], [[0.0, 2.5]] * 2)
    np.testing.assert_allclose(actions[1, :, :, 0], [[0.125, 2.875]] * 2)
    np.testing.assert_allclose(actions[2, :, :, 0], [[0.0, 2.5]] * 2)


@pytest.mark.parametrize(
    "exploration",
    [
        None,
        Exploration(random_steps=3),
        GaussianNoise(std=0.25),
        EpsilonGreedy(start=1.0, end=0.1, num_steps=7),
        Kick(size=0.5),
    ],
)
def test_exploration_travels_as_json(exploration):
    sent = json.dumps(exploration and exploration.to_json())
    assert exploration_from_json(json.loads(sent)) == exploration


def test_gaussian_noise_replaces_that_of_a_stochastic_head():
    """With a standard deviation of 1, nothing changes."""
    block = {"first_step": 3, "num_steps": 4, "num_envs": 2}
    own, added = (
        make_policy("squashed_gaussian", exploration).draw_noise(7, **block)
        for exploration in (Exploration(random_steps=5), GaussianNoise(std=1.0, random_steps=5))
    )
    np.testing.assert_array_equal(own, added)


def test_workers_need_classes_that_can_be_imported():
    @dataclass(frozen=True, kw_only=True)
    class Local(Exploration):
        pass

    @dataclass(frozen=True)
    class LocalHead(Deterministic):
        pass

    make_policy("deterministic", Kick(size=0.5)).check_importable()
    message = r"can't import the {} '.*<locals>.{}': define it at the top level"
    policy = make_policy("deterministic", Local())
    with pytest.raises(ConfigError, match=message.format("exploration", "Local")):
        policy.check_importable()
    network = make_actor("deterministic")
    network = dataclasses.replace(network, head=LocalHead().bind(network.action_spec))
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(0)))
    with pytest.raises(ConfigError, match=message.format("head", "LocalHead")):
        policy.check_importable()


@pytest.mark.parametrize(
    "exploration",
    [
        GaussianNoise(std=np.float32(0.1)),
        Exploration(random_steps=5.0),
        Kick(size="0.5"),
        EpsilonGreedy(start=1.0, end=0.1, num_steps=7.5),
    ],
)
def test_fields_must_be_storable(exploration):
    kind = "greedy" if isinstance(exploration, EpsilonGreedy) else "deterministic"
    with pytest.raises(
        ConfigError, match=r"the fields of the exploration \w+\(random_steps=.* must"
    ):
        make_policy(kind, exploration)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Exploration(random_steps=-1), "`random_steps` of Exploration must be at least 0"),
        (lambda: GaussianNoise(std=-0.1), "`std` of GaussianNoise must be a number from 0, got -0"),
        (lambda: GaussianNoise(std=float("nan")), "must be a number from 0, got nan"),
        (lambda: EpsilonGreedy(start=1.5, end=0.1), "`start` of EpsilonGreedy .*, got 1.5"),
        (lambda: EpsilonGreedy(start=1.0, end=-1.0), "`end` of EpsilonGreedy .*, got -1.0"),
        (lambda: EpsilonGreedy(start=1.0, end=0.1, num_steps=0), "`num_steps` .* at least 1"),
    ],
)
def test_values_are_checked(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_kinds_refuse_heads_that_they_do_not_support():
    with pytest.raises(ConfigError, match="GaussianNoise needs a head for actions within bounds"):
        make_policy("greedy", GaussianNoise(std=0.1))
    with pytest.raises(ConfigError, match="EpsilonGreedy needs a number of discrete actions"):
        make_policy("deterministic", EpsilonGreedy(start=1.0, end=0.1))
    network = actor_critic(Spaces(obs_spec(4), BOX))
    snapshot = PolicySnapshot(0, network.initial_parameters(0))
    message = (
        r"Exploration needs a head for actions within bounds, or Categorical\(\), got Gaussian"
    )
    with pytest.raises(ConfigError, match=message):
        ActingPolicy(network, snapshot, exploration=Exploration())
    spec = replace(DISCRETE, is_masked=True)
    with pytest.raises(ConfigError, match="Exploration takes uniform actions, which masks can't"):
        Exploration().check(Categorical().bind(spec))


@pytest.mark.parametrize(("head", "spec"), [(Categorical(), DISCRETE), (MultiCategorical(), MULTI)])
def test_discrete_actions_are_uniform_first_and_then_those_of_the_head(head, spec):
    head, exploration = head.bind(spec), Exploration(random_steps=400)
    block = {"first_step": 398, "num_steps": 4, "num_envs": 3_000}
    noise = exploration.draw_noise(head, 5, **block)
    np.testing.assert_array_equal(noise[2:, :, :-1], head.draw_noise(5, **block)[2:])
    outputs = np.zeros((3_000, head.size), np.float32)
    outputs[:, 1] = 50.0
    action = np.empty((4, 3_000, *spec.shape), spec.dtype)
    for k in range(4):
        assert exploration.is_needed(head, noise[k]) == (k >= 2)
        exploration.choose(head, outputs, noise[k], action[k], {})
    first = action.reshape(4, 3_000, -1)[..., 0]
    assert (first[2:] == 1).all()
    sizes = spec.nvec or (spec.num_actions,)
    for j, size in enumerate(sizes):
        counts = np.bincount(action[:2].reshape(6_000, -1)[:, j], minlength=size)
        assert (abs(counts - 6_000 / size) < 5 * np.sqrt(6_000 / size)).all()
