"""Masks with every kind of observation, from every source: no forbidden action is ever chosen."""

import dataclasses
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from hotloop import evaluate, load
from hotloop.algorithms import appo, dqn, ppo
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import CheckpointError, ConfigError, MaskError
from hotloop.policies import (
    ActingPolicy,
    EpsilonGreedy,
    PolicySnapshot,
    actor,
    actor_critic,
    network_from_json,
)
from hotloop.policies.heads import Greedy
from hotloop.rollouts.inline import InlineRollout
from tests.toy_envs import ConstantReward, Forbidding, wrapped_forbidding
from tests.training import test_off_policy

KINDS = ("flat", "bytes", "image", "dict", "packed")
SOURCES = ("info", "method", "observation")
LAYERS = {"hidden_sizes": (8,)}


def make_envs(kind, source, num_envs=3):
    make = partial(wrapped_forbidding, kind=kind, source=source)
    return make_vec(EnvSpec(make, action_masks=True, seed=1), num_envs)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_contain_allowed_actions_alone(kind, source):
    """The environment raises otherwise."""
    unmasked = make_vec(EnvSpec(partial(Forbidding, kind=kind)), 1)
    networks = [(actor_critic, {}), (partial(actor, head=Greedy()), {"memory": "gru:4"})]
    for make_network, options in networks:
        envs = make_envs(kind, source)
        network = make_network(envs, **LAYERS, **options)
        names = {part.name for part in network.obs_spec.layout}
        assert not any("mask" in name for name in names)
        if (kind, source) != ("bytes", "observation"):  # bytes in a dict are float32
            assert network.obs_spec.dtype == unmasked.obs_spec.dtype
        params = {name: 3 * x + 0.1 for name, x in network.initial_parameters(0).items()}
        exploration = EpsilonGreedy(start=0.5, end=0.5)
        policy = ActingPolicy(network, PolicySnapshot(0, params), exploration=exploration)
        rollout = InlineRollout(envs, policy, num_steps=20, seed=0)
        fragments = [rollout.collect()[0] for _ in range(2)]
        for fragment in fragments:
            masks = np.concatenate([fragment.mask, fragment.last_mask[None]])
            ends = fragment.terminated | fragment.truncated
            assert ends.any()
            assert (fragment.mask.sum(-1) == 2).all()
            np.testing.assert_array_equal(fragment.next_mask[~ends], masks[1:][~ends])
            assert fragment.next_mask[fragment.terminated].all()
            cut = fragment.truncated & ~fragment.terminated
            assert (fragment.next_mask[cut].sum(-1) == 2).all()
            chosen = np.take_along_axis(fragment.mask, fragment.action[..., None], -1)
            assert chosen.all()
        rollout.close()


@pytest.mark.parametrize(
    ("mode", "source"),
    [
        (AutoresetMode.NEXT_STEP, "method"),
        (AutoresetMode.DISABLED, "method"),
        *((mode, "observation") for mode in AutoresetMode),
    ],
)
def test_vector_environments_have_the_masks_of_their_environments(mode, source):
    def factory():
        make = partial(wrapped_forbidding, kind="packed", source=source)
        return SyncVectorEnv([make] * 3, autoreset_mode=mode)

    envs = make_vec(EnvSpec(factory, action_masks=True), 3)
    envs.reset()
    num_ends = 0
    for _ in range(30):
        step = envs.step(envs.mask.argmax(1))
        num_ends += int((step.terminated | step.truncated).sum())
        assert (step.next_mask.sum(1) == np.where(step.terminated, 5, 2)).all()
    assert num_ends > 5
    envs.close()


def test_a_method_has_no_last_masks_in_same_step_mode():
    def factory():
        makes = [partial(wrapped_forbidding, source="method")] * 2
        return SyncVectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP)

    envs = make_vec(EnvSpec(factory, action_masks=True), 2)
    message = r"0 … 1, vector step 0: in same-step mode `action_masks\(\)` has no mask of .*last"
    with pytest.raises(MaskError, match=message):
        envs.reset()


def test_environments_in_processes_have_their_methods_called():
    def factory():
        return AsyncVectorEnv([partial(wrapped_forbidding, source="method")] * 2)

    envs = make_vec(EnvSpec(factory, action_masks=True), 2)
    envs.reset()
    for _ in range(8):
        step = envs.step(envs.mask.argmax(1))  # others raise
        assert (step.next_mask.sum(1) == np.where(step.terminated, 5, 2)).all()
    envs.close()
    unmasked = make_vec(EnvSpec(lambda: AsyncVectorEnv([ConstantReward])), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unmasked.reset()
    unmasked.close()


SHORT = {
    ppo: {"num_steps": 12, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 96},
    appo: {"num_steps": 12, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 96},
    dqn: {**test_off_policy.SMALL, "total_timesteps": 120, "epsilon_end": 0.5},
}


@pytest.mark.parametrize(
    ("algorithm", "kind", "source", "options"),
    [
        (ppo, "image", "observation", {"memory": "gru:8", "workers": 1}),
        (ppo, "packed", "method", {}),
        (appo, "packed", "method", {"workers": 2, "schedule": "async"}),
        (appo, "flat", "info", {"workers": 2, "schedule": "lag:1", "inference": "central"}),
        (dqn, "image", "info", {"n_step": 3, "workers": 1}),
        (dqn, "dict", "observation", {"memory": "gru:8"}),
    ],
)
def test_runs_choose_allowed_actions_alone(tmp_path, algorithm, kind, source, options):
    fields = {"num_envs": 4, "action_masks": True, "execution": "eager", **LAYERS, "seed": 2}
    fields |= {"env_id": "tests.toy_envs:wrapped_forbidding", **SHORT[algorithm], **options}
    fields["env_kwargs"] = {"kind": kind, "source": source}
    if "workers" in options:
        fields["max_failures"] = 0
    run = algorithm.train(algorithm.Config(**fields, run_dir=str(tmp_path / "run"))).run_dir
    assert len(evaluate(run, episodes=3).returns) == 3
    policy, env = load(run), Forbidding(kind, source)
    memory = policy.new_memory()
    obs, _ = env.reset(seed=1)
    for _ in range(4):
        mask = {} if source == "observation" else {"action_mask": env.mask}
        action = policy.act(obs, memory, deterministic=False, **mask)
        obs = env.step(action)[0]


class PlainBatch(NamedTuple):
    """A batch without fields for masks and sequences."""

    obs: Any
    action: Any


def prepare_plain(fragment, hyper, config):
    return PlainBatch(fragment.obs, fragment.action)


@pytest.mark.parametrize(
    ("options", "missing"),
    [({"action_masks": True}, "`mask`"), ({"memory": "gru:4"}, "`memory`, `begins`, `weight`")],
)
def test_a_batch_without_the_required_fields_is_refused(tmp_path, options, missing):
    algorithm = dataclasses.replace(ppo.algorithm, prepare=prepare_plain)
    fields = {"env_id": "tests.toy_envs:Forbidding", "num_envs": 2, "execution": "eager"}
    if "memory" in options:
        fields["env_id"] = "CartPole-v1"
    config = ppo.Config(**fields, **SHORT[ppo], **options, run_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=f"the batch of 'ppo' has no {missing}: add the fields"):
        algorithm.train(config)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("num_envs", "bad", "message"),
    [
        (None, [0, 0, 0, 0, 0], "must allow an action, got only zeros"),
        (2, [0, 0, 0, 0, 0], "must allow an action, got only zeros"),
        (None, [1, 0, 2, 0, 0], "got other numbers, such as 2"),
        (2, [1, 0, 2, 0, 0], "got other numbers, such as 2"),
        # Gymnasium's vector environments fail to stack these.
        (None, [1, 0, 1], r"must be of shape \(5,\), 1 for allowed actions"),
        (None, ["a", "b", "c", "d", "e"], "must be of shape"),
    ],
)
def test_a_wrong_mask_names_environment_episode_and_step(source, num_envs, bad, message):
    make = partial(Forbidding, "flat", source, bad=bad)

    def factory():
        return make() if num_envs is None else SyncVectorEnv([make] * num_envs)

    envs = make_vec(EnvSpec(factory, action_masks=True), 2)
    envs.reset()
    for _ in range(2):
        envs.step(envs.mask.argmax(1))
    action = envs.mask.argmax(1)
    with pytest.raises(MaskError, match=r"environment 0, episode 0, step 2: .*" + message):
        envs.step(action)


def test_a_failing_method_is_named():
    env = Forbidding(source="method")
    env.action_masks = lambda: 1 // 0
    envs = make_vec(EnvSpec(lambda: env, action_masks=True), 1)
    message = r"episode 0, at its reset: `action_masks\(\)` raised ZeroDivisionError"
    with pytest.raises(MaskError, match=message):
        envs.reset()


def test_masks_inside_observations_of_an_earlier_version_are_refused():
    envs = make_envs("flat", "info")
    fields = actor_critic(envs, **LAYERS).to_json()
    fields["obs_spec"]["mask_size"] = 5
    with pytest.raises(CheckpointError, match="an earlier version of hotloop trained this policy"):
        network_from_json(fields)
