"""`EnvSpec`: names of environments, and specifications for other processes."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import numpy as np
import pytest

from hotloop.envs import EnvSpec, episode_seed, make_vec
from hotloop.errors import ConfigError
from tests.envs.toy import CountingEnv, counting

TOY = "tests.envs.toy"


class Factories:
    @staticmethod
    def make():
        return CountingEnv()


def test_another_process_gets_the_same_specification():
    spec = EnvSpec(
        counting,
        {"number": 7},
        seed=3,
        first_env=4,
        first_episode=5,
        stream="evaluation",
        stagger=6,
        action_masks=True,
        log_info=("x",),
    )
    changed = [x.name for x in dataclasses.fields(spec) if getattr(spec, x.name) != x.default]
    assert len(changed) == len(dataclasses.fields(spec))  # no field is left out below
    sent = json.loads(json.dumps(spec.to_json()))
    assert EnvSpec.from_json(sent) == dataclasses.replace(spec, env=f"{TOY}:counting")


def test_a_sent_specification_makes_equal_environments():
    spec = EnvSpec(CountingEnv, {"number": 7}, seed=1)
    sent = EnvSpec.from_json(json.loads(json.dumps(spec.to_json())))
    np.testing.assert_array_equal(make_vec(sent, 2).reset(), make_vec(spec, 2).reset())


def test_names():
    assert EnvSpec("CartPole-v1").name == "CartPole-v1"
    assert EnvSpec(counting).name == f"{TOY}:counting"
    assert "<" in EnvSpec(partial(counting, number=7)).name
    assert [EnvSpec(x).is_envpool for x in ("envpool:Pong-v5", "envpool", counting)] == [
        True,
        False,
        False,
    ]


def test_an_id_or_a_factory_is_short_for_a_specification():
    assert EnvSpec.of("CartPole-v1") == EnvSpec("CartPole-v1")
    assert EnvSpec.of(counting) == EnvSpec(counting)
    spec = EnvSpec("CartPole-v1", seed=3)
    assert EnvSpec.of(spec) is spec


def test_seeds_of_episodes_count_environments_over_all_workers():
    spec = EnvSpec("CartPole-v1", seed=3, first_env=4, stream="evaluation")
    assert spec.episode_seed(2, 5) == episode_seed(3, 6, 5, "evaluation")


@pytest.mark.parametrize("env_kwargs", [8, None, [("number", 7)]])
def test_other_types_of_arguments_are_refused(env_kwargs):
    with pytest.raises(ConfigError, match="`env_kwargs` must be a dictionary of the environment's"):
        EnvSpec("CartPole-v1", env_kwargs)


def test_one_key_is_not_a_sequence_of_keys():
    with pytest.raises(ConfigError, match=r"`log_info` must be .*, got 'won': pass \['won'\]"):
        EnvSpec("CartPole-v1", log_info="won")


def test_a_specification_keeps_its_values():
    kwargs, keys = {"number": 7}, ["x"]
    spec = EnvSpec(counting, kwargs, log_info=keys)
    kwargs["number"] = 8
    keys.append("y")
    assert (spec.env_kwargs, spec.log_info) == ({"number": 7}, ("x",))


CIRCLE = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "received"),
    [
        (np.arange(3), r"an array of shape \(3,\)"),
        (CIRCLE, "a list of length 1"),
        ((1, 2), "a tuple of length 2"),
        ({0: 1}, "a dict of length 1"),
        ([{"a": (1,)}], "a list of length 1"),
    ],
)
def test_arguments_that_are_not_json_stay_in_this_process(value, received):
    spec = EnvSpec(counting, {"right": [1, {"a": None}], "number": value})
    with pytest.raises(ConfigError, match=f"the same in JSON, got {received}.* for 'number': pass"):
        spec.to_json()


def test_factories_without_a_name_stay_in_this_process():
    advice = "put it at the top level of a module, such as my_envs.py"
    for factory in (lambda: CountingEnv(), partial(counting, number=7), Factories.make):
        with pytest.raises(ConfigError, match=rf"a worker can't import the factory .*: {advice}"):
            EnvSpec(factory).to_json()
