"""Every option of every algorithm is used or refused, wherever the environments run."""

import dataclasses
import importlib
import itertools
import sys
import types

import pytest

from hotloop.algorithms import ALGORITHMS, find
from hotloop.errors import ConfigError
from hotloop.training.options import with_values
from tests.rollouts.threads_transport import ThreadEnvironments

# Options that select where environments run and the policy acts.
BACKENDS = {
    "inline": {},
    "groups": {"workers": 2, "backend": "inline"},
    "processes": {"workers": 2},
    "central": {"workers": 2, "inference": "central"},
    "ray": {"workers": 2, "backend": "ray"},
    "device": {"env_id": "hotloop:CartPole"},
}
SMALL = {"total_timesteps": 64, "num_envs": 2, "hidden_sizes": (8,), "execution": "eager"}
ON_POLICY = {"num_steps": 8, "num_minibatches": 2, "update_epochs": 1}
OFF_POLICY = {"learning_starts": 16, "batch_size": 8, "buffer_size": 100, "report_interval": 16}
SMALLER_CRITICS = {"crossq": {"critic_hidden_sizes": (8,)}}
# A value of each option that a training does not read, to check that it is refused.
VALUES = {
    "burn_in": 0,
    "eval_episodes": 3,
    "eval_max_steps": 5,
    "eval_opponent": "random",
    "eval_timeout_s": None,
    "eval_videos": True,
    "fragment_steps": 8,
    "gpu_window_ms": 250,
    "hindsight_share": 0.5,
    "inference": "central",
    "inference_actors": 2,
    "inference_resources": {"num_gpus": 1},
    "max_failures": 3,
    "max_policy_age": 9,
    "ray_address": "auto",
    "ray_runtime_env": {"pip": ["hotloop"]},
    "opponents": ("random",),
    "replay_alpha": 0.5,
    "replay_beta": 0.5,
    "replay_from_share": 0.25,
    "replay_replacement": True,
    "replay_shift": 1.0,
    "replay_weight_from": "return_to_go",
    "self_play_interval": 64,
    "self_play_pool": 2,
    "self_play_keep": 3,
    "self_play_epsilon": 0.5,
    "sequence_length": 4,
    "step_timeout_s": 5.0,
    "value_max": 100.0,
    "value_min": -100.0,
    "worker_resources": {"num_cpus": 2},
    "workers_per_node": 1,
}


# Code that copies, compares, stores or checks all options.
NOT_USES = ("dataclasses.py", "<string>", "serialization.py", "options/base.py")


class ThreadsForRay(ThreadEnvironments):
    """Threads with the arguments of Ray's environments."""

    def __init__(self, spec, options, *, timing_dir, step_timeout_s, **sizes):
        super().__init__(spec, **sizes)


@pytest.fixture
def read(monkeypatch):
    """Replace other processes by threads. Return a function that starts to record reads."""
    monkeypatch.setattr("hotloop.rollouts.processes.pool.WorkerPool", ThreadEnvironments)
    monkeypatch.setattr("hotloop.rollouts.ray.environments.RayEnvironments", ThreadsForRay)

    def record(config):
        """Return the set of options that are read from now on, except to store or copy them."""
        names, options = {field.name for field in dataclasses.fields(config)}, set()

        def read_option(self, name):
            frame = sys._getframe(1)
            while frame.f_code.co_name == "value_of":
                frame = frame.f_back
            if name in names and not frame.f_code.co_filename.endswith(NOT_USES):
                options.add(name)
            return object.__getattribute__(self, name)

        monkeypatch.setattr(type(config), "__getattribute__", read_option)
        return options

    return record


# Only PPO accepts environments on the device. An offline algorithm steps none.
CASES = [
    (name, backend)
    for name, backend in itertools.product(ALGORITHMS, BACKENDS)
    if name != "td3_bc" and (backend != "device" or name == "ppo")
]


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_every_option_is_used_or_refused(tmp_path, read, name, backend):
    algorithm = find(name)
    is_on_policy = "num_steps" in {field.name for field in dataclasses.fields(algorithm.config)}
    options = {**SMALL, **(ON_POLICY if is_on_policy else OFF_POLICY), **BACKENDS[backend]}
    options |= SMALLER_CRITICS.get(name, {})
    config = algorithm.config(**options, checkpoint_interval=64, run_dir=str(tmp_path / "run"))
    used = read(config)
    algorithm.train(config)
    ignored = {field.name for field in dataclasses.fields(config)} - used
    assert "eval_episodes" in ignored  # otherwise more code than training reads options
    for option in ignored:
        assert option in VALUES, f"`{option}` has no effect with {BACKENDS[backend]}"
        with pytest.raises(ConfigError, match=f"`{option}`"):
            algorithm.config(**options, **{option: VALUES[option]})


class ReceivedError(Exception):
    """Ends a training with the options of its fleet."""


@pytest.mark.parametrize(
    ("backend", "module", "pool", "transport"),
    [
        ("processes", "processes.pool", "WorkerPool", "ProcessTransport"),
        ("ray", "ray.environments", "RayEnvironments", "ActorTransport"),
    ],
)
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("appo", {"max_policy_age": 3, "too_old": "drop"}, {"drops_too_old": True}),
        ("appo", {"max_policy_age": 3}, {"drops_too_old": False}),
        ("dqn", {"max_policy_age": 900, "fragment_steps": 5}, {"num_steps": 5}),
    ],
)
def test_fleets_receive_the_options_of_schedules(
    tmp_path, monkeypatch, backend, module, pool, transport, name, options, expected
):
    module = importlib.import_module(f"hotloop.rollouts.{module}")

    def make(self, spec, *_, **__):
        vars(self).update(vars(ThreadEnvironments(spec, num_workers=2)))
        self._transports, self._num_inference, self.supervisor = [], 0, types.SimpleNamespace()

    def receive(envs, policy, options, num_envs):
        raise ReceivedError(options)

    monkeypatch.setattr(getattr(module, pool), "__init__", make)
    monkeypatch.setattr(getattr(module, pool), "close", lambda self: None)
    monkeypatch.setattr(module, transport, receive)
    fields = {**SMALL, **(OFF_POLICY if name == "dqn" else ON_POLICY), "workers": 2, **options}
    config = find(name).config(
        **fields, backend=backend, schedule="async", run_dir=str(tmp_path / "run")
    )
    with pytest.raises(ReceivedError) as caught:
        find(name).train(config)
    received = dataclasses.asdict(caught.value.args[0])
    expected = {**expected, "schedule": "async", "max_policy_age": options["max_policy_age"]}
    assert {key: received[key] for key in expected} == expected


def test_required_options_are_named_with_the_value_and_the_default():
    config = find("ppo").config
    with pytest.raises(ConfigError) as caught:
        config(workers=2, worker_resources={"num_cpus": 2})
    assert str(caught.value) == (
        "`worker_resources` {'num_cpus': 2} is for `backend` 'ray', got 'processes': set "
        "`backend`, or leave `worker_resources` at {}"
    )
    with pytest.raises(ConfigError) as caught:
        config(step_timeout_s=5)
    assert str(caught.value) == (
        "`step_timeout_s` 5 needs `workers`, got 0: set `workers`, or leave `step_timeout_s` "
        "at 300.0"
    )


def test_a_measured_choice_returns_useless_options_to_their_defaults():
    options = {"workers": "auto", "num_envs": 2, "schedule": "async"}
    config = find("dqn").config(**options, fragment_steps=8, max_failures=3)
    assert with_values(type(config), vars(config), {"workers": 2}).fragment_steps == 8
    alone = with_values(type(config), vars(config), {"workers": 0, "schedule": "barrier"})
    assert (alone.workers, alone.schedule, alone.fragment_steps) == (0, "barrier", 64)
    assert alone.max_failures == 100
