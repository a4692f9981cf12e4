"""Replay on a device: launches, and whole trainings with tensors on the CPU."""

import contextlib
import copy
import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hotloop.algorithms import dqn, sac, td3
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError, NonFiniteError
from hotloop.learner import ExecutionChoice, Learner, artifacts
from hotloop.learner.state import tensors
from hotloop.policies import ObsScale
from hotloop.replay import ReplayBuffer
from hotloop.replay.storage import device_memory
from hotloop.training import device_replay, off_policy
from hotloop.training.device_replay import Launches, ReplayOnDevice
from hotloop.training.lanes import train_lanes
from hotloop.training.learners import make_learner
from hotloop.training.replay import ReplayBatch
from hotloop.types import Fragment
from tests import toy_images
from tests.learner.test_cuda_graphs import FakeCapturer
from tests.training.test_off_policy import (
    ENVS,
    LONG,
    SMALL,
    assert_same_weights,
    each_algorithm,
    faulty_factory,
    lines_of,
    make_config,
    overflow,
    train,
    weights_of,
)
from tests.training.test_train import assert_same_run

B = 16


def learner_of(algorithm, envs, config):
    """Return a learner as a run builds it. Every call returns an equal one."""
    declared, device = algorithm.algorithm, torch.device("cpu")
    nets = declared.networks(config, envs, device)
    return make_learner(
        declared,
        config,
        nets,
        [update.rule(nets, config) for update in declared.updates],
        device=device,
        stream=2,
        num_batches=100,
        batch_size=config.batch_size,
    )


def fill(envs, *buffers, num_steps=30, seed=0):
    """Add the same random transitions to every buffer."""
    rng = np.random.default_rng(seed)
    count = num_steps * envs.num_envs
    spec = envs.action_spec
    action = rng.uniform(-1, 1, (count, *spec.shape)).astype(spec.dtype)
    if np.dtype(spec.dtype).kind in "iu":
        action = rng.integers(0, 2, (count, *spec.shape)).astype(spec.dtype)
    rows = {
        "obs": rng.normal(size=(count, *envs.obs_spec.shape)).astype(np.float32),
        "action": action,
        "reward": rng.normal(size=count).astype(np.float32),
        "next_obs": rng.normal(size=(count, *envs.obs_spec.shape)).astype(np.float32),
        "terminated": rng.random(count) < 0.1,
        "truncated": rng.random(count) < 0.1,
    }
    for buffer in buffers:
        buffer.extend(**rows)


def with_numbered_noise(learner):
    learner.use_numbered_noise()
    return learner


@pytest.mark.parametrize(("n_step", "expected"), [(1, 0.25), (3, 0.125)])
def test_discount_of_batches_on_the_device(n_step, expected):
    """It is γ of this draw for one step, and the stored γ³ for three, with γ = 0.5 at first."""
    options = {**SMALL, "num_envs": 2, "n_step": n_step, "batch_size": 8, "gamma": 0.5}
    config = dqn.Config(replay_device="device", **options)
    with contextlib.closing(make_vec(EnvSpec(ENVS[dqn], seed=0), 2)) as envs:
        replay = ReplayOnDevice(config, envs, torch.device("cpu"), is_scaled=False)
        fragment = Fragment.allocate(
            10, 2, obs_shape=envs.obs_spec.shape, obs_dtype="f4", action_shape=(), action_dtype="i8"
        )
        replay.store(fragment)
        replay.gamma = 0.25
        (batch,), _ = replay.draw(1)
        assert set(batch.discount.tolist()) == {expected}


def host_batch(host, number, importance, scale, gamma):
    """Return the host replay's batch of these transitions."""
    rows = host.get(number)
    obs, next_obs = rows.obs, rows.next_obs
    if scale is not None:
        obs, next_obs = scale.apply(obs), scale.apply(next_obs)
    has_windows = "discount" in rows.keys()  # noqa: SIM118
    discount = rows.discount if has_windows else np.float32(gamma) * ~rows.terminated
    fields = (obs, rows.action, rows.reward, next_obs, discount, importance)
    return ReplayBatch(*(torch.from_numpy(np.array(x)) for x in fields))


def metrics_of(learner):
    return {name: torch.stack(rows).numpy() for name, rows in learner.metrics._rows.items()}


@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"replay": "prioritized"}], ids=str)
@pytest.mark.parametrize("is_scaled", [False, True])
@each_algorithm
def test_launch_equals_single_updates(monkeypatch, algorithm, options, is_scaled):
    """The single updates get the host's batches of the same transitions, and the same noise."""
    options = {**SMALL, **options, "batch_size": B, "num_envs": 4, "normalize_obs": is_scaled}
    config = algorithm.Config(replay_device="device", updates_per_launch=4, **options)
    with contextlib.closing(make_vec(EnvSpec(ENVS[algorithm], seed=0), 4)) as envs:
        shape = envs.obs_spec.shape
        scale = None
        if is_scaled:
            scale = ObsScale(np.full(shape, 0.3, "f"), np.full(shape, 0.7, "f"), 1.5)
        replay = ReplayOnDevice(config, envs, torch.device("cpu"), is_scaled=config.normalize_obs)
        host = ReplayBuffer.for_env(
            envs, config.buffer_size, n_step=config.n_step, gamma=replay.gamma
        )
        fill(envs, replay.buffer, host)
        device_learner, host_learner = (
            learner_of(algorithm, envs, config),
            learner_of(algorithm, envs, config),
        )
        launches, importance = Launches(device_learner, replay, 4), np.ones((4, B), "f")
        host_learner.use_numbered_noise()
        prepare = replay.buffer.prepare

        def prepare_weighted(count):
            prepared = prepare(count)
            if prepared is not None:  # None until the first priorities arrive
                importance[:] = np.random.default_rng(count).random((4, B))
                replay.buffer.inbox.arrays["importance"][:] = importance
            return prepared

        monkeypatch.setattr(replay.buffer, "prepare", prepare_weighted)
        for gamma, num_due in ((0.9, 1), (0.8, 4), (0.7, 6), (0.6, 9)):
            # The last launches start within the period of a delayed update.
            replay.gamma = gamma
            for count in launches.launch_sizes(num_due):
                host_numbers, td_error = launches.run(count, scale)
                numbers = [number.numpy().copy() for number in launches.drain_log()]
                assert len(numbers) == count
                assert (host_numbers is None) is (td_error is None) is not replay.by_priority
                if host_numbers is not None:
                    np.testing.assert_array_equal(host_numbers, numbers)
                for k, number in enumerate(numbers):
                    assert number.shape == (B,)
                    error = host_learner.update(
                        host_batch(host, number, importance[k], scale, gamma)
                    )
                    if td_error is not None:
                        torch.testing.assert_close(td_error[k], error, rtol=1e-5, atol=1e-6)
        assert launches.drain_log() == []
        assert device_learner.num_updates == host_learner.num_updates == 20
        want = tensors(host_learner.state)
        for name, tensor in tensors(device_learner.state).items():
            torch.testing.assert_close(tensor, want[name], rtol=1e-5, atol=1e-6)
        want = metrics_of(host_learner)
        for name, rows in metrics_of(device_learner).items():
            np.testing.assert_allclose(rows, want[name], rtol=1e-4, atol=1e-5)
        assert device_learner.metrics._updates == host_learner.metrics._updates


@each_algorithm
def test_training_does_not_depend_on_the_launch_size(tmp_path, algorithm):
    options = {"env_id": LONG[algorithm], "num_envs": 4, "replay_device": "device"}
    options["total_timesteps"] = 120
    for name, count in (("a", 1), ("b", 4)):
        result = train(algorithm, tmp_path, name=name, updates_per_launch=count, **options)
        assert result.status == "finished"
    assert_same_weights(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(("kind", "n_step"), [("prioritized", 3), ("rank", 1), ("proportional", 3)])
def test_run_equals_the_hosts_if_the_host_draws(tmp_path, monkeypatch, kind, n_step):
    """With one update a round, priorities arrive in time in both runs. Noise is numbered."""
    monkeypatch.setattr(
        "hotloop.training.learners.Learner",
        lambda *args, **options: with_numbered_noise(Learner(*args, **options)),
    )
    options = {"env_id": "Pendulum-v1", "replay": kind, "n_step": n_step, "clip_reward": 3.0}
    options["total_timesteps"] = 120
    for place in ("host", "device"):
        train(sac, tmp_path, name=place, replay_device=place, **options)
    assert_same_weights(tmp_path / "host", tmp_path / "device")


RUN = {"env_id": "Pendulum-v1", "num_envs": 2, "replay_device": "device", "save_replay": True}


LAUNCHES = {"updates_per_launch": 2}
OF_DQN = {"env_id": "CartPole-v1", "replay": "rank", "target_interval": 30, "tau": 0.5}


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (sac, {"replay": "prioritized", "n_step": 3, "normalize_obs": True}),
        (td3, {**LAUNCHES, "replay": "proportional"}),
        (dqn, {**LAUNCHES, **OF_DQN}),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, algorithm, options):
    options = {**RUN, **options}
    train(algorithm, tmp_path, name="whole", **options)
    parts = make_config(algorithm, tmp_path, "parts", **options)
    algorithm.train(parts, on_report=lambda report: report.timesteps >= 100)
    reports = []
    result = algorithm.train(parts, on_report=reports.append, resume_from=tmp_path / "parts")
    assert reports[0].resumed == "resumed at 100 steps"
    assert result.status == "finished"
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("places", "options"),
    [
        (("host", "device"), {"replay": "prioritized", "n_step": 3}),
        (("device", "host"), {}),
    ],
)
def test_the_replay_may_move_between_stop_and_resume(tmp_path, places, options):
    first, second = (
        make_config(sac, tmp_path, **{**RUN, **options, "replay_device": place}) for place in places
    )
    sac.train(first, on_report=lambda report: report.timesteps >= 100)
    reports = []
    result = sac.train(second, on_report=reports.append, resume_from=tmp_path / "run")
    assert reports[0].resumed.startswith("resumed at 100 steps")
    assert "starts empty" not in reports[0].resumed
    assert result.status == "finished"
    lines = lines_of(result)
    assert [line["replay_size"] for line in lines] == [
        line["timesteps"] - (4 if options and line["timesteps"] < 300 else 0) for line in lines
    ]


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_an_update_that_is_not_finite_is_named_with_its_batch(tmp_path, kind):
    options = {"replay": kind, "train_frequency": 10, "batch_size": 30, "num_envs": 1}
    options |= {"replay_device": "device", "updates_per_launch": 2}
    message = r"update (\d+) of iteration 2 gave NaN or infinity in .*loss.*is saved in (.*)$"
    with pytest.raises(NonFiniteError, match=message) as caught:
        train(sac, tmp_path, faulty_factory(ENVS[sac], 90, overflow), **options)
    update, path = re.search(message, str(caught.value)).groups()
    assert 31 <= int(update) <= 50
    batch = load_file(path)
    assert batch["obs"].shape == (30, 2)
    assert batch["reward"].max() == np.float32(3e38)


def test_lanes_learn_batch_by_batch(tmp_path):
    """Each lane learns what its single run learns with launches."""
    options = {"env_id": "Pendulum-v1", "num_envs": 4, "replay_device": "device"}
    configs = [
        make_config(td3, tmp_path, f"lane{seed}", seed=seed, updates_per_launch=2, **options)
        for seed in (1, 2)
    ]
    results = train_lanes(td3.algorithm, configs)
    for seed, result in zip((1, 2), results, strict=True):
        alone = train(
            td3, tmp_path, name=f"alone{seed}", seed=seed, updates_per_launch=2, **options
        )
        want = weights_of(alone.run_dir)
        for name, array in weights_of(result.run_dir).items():
            np.testing.assert_allclose(array, want[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_images_may_move_between_stop_and_resume(tmp_path):
    """The replay moves twice, and stored frames are restored as frames."""
    options = {"num_envs": 2, "batch_size": 8, "n_step": 2, "network": "nature"}
    options |= {"save_replay": True, "total_timesteps": 120, "hidden_sizes": (8,)}
    for place, end in (("device", 60), ("host", 90), ("device", 120)):
        config = make_config(dqn, tmp_path, replay_device=place, **options)
        result = dqn.train(
            config,
            env=toy_images.Catch,
            on_report=lambda report, end=end: report.timesteps >= end,
            resume_from=None if place == "device" and end == 60 else tmp_path / "run",
        )
    assert result.status in ("finished", "stopped")
    assert lines_of(result)[-1]["replay_size"] > 110


# --- bad input ------------------------------------------------------------------------------------


ON_DEVICE = {"replay_device": "device"}


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (sac, {"updates_per_launch": 2}, "`updates_per_launch` needs a buffer on the device"),
        (sac, {"updates_per_launch": 2, "replay_device": "host"}, "on the host: choose 'device'"),
        (
            sac,
            {**ON_DEVICE, "updates_per_launch": 4, "num_envs": 2},
            r"updates of a round, update_to_data × train_frequency × num_envs = 2, got 4: raise",
        ),
        (sac, {**ON_DEVICE, "hindsight": "future"}, "not support `hindsight`: choose 'host'"),
        (sac, {**ON_DEVICE, "schedule": "async", "workers": 1}, "not support `schedule` 'async'"),
        (dqn, {**ON_DEVICE, "memory": "lstm:8"}, "does not support `memory`"),
        (sac, {"replay_device": "gpu"}, "`replay_device` must be 'auto', 'host' or 'device'"),
    ],
)
def test_conflicting_options_are_refused(algorithm, options, message):
    with pytest.raises(ConfigError, match=message):
        algorithm.Config(**{**SMALL, **options})


def test_a_launch_must_hold_whole_periods(tmp_path):
    options = {"num_envs": 4, "replay_device": "device", "policy_frequency": 3}
    with pytest.raises(ConfigError, match=r"must be a multiple of 3, .* every 3.*got 4: use 3"):
        train(td3, tmp_path, updates_per_launch=4, **options)


def test_device_without_room_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(device_memory, "free_bytes", lambda device: 20_000)
    message = (
        r"^a replay of 10,000 transitions on cpu takes \d+ KiB, and 19 KiB are free: lower `buff"
    )
    with pytest.raises(ConfigError, match=message):
        train(sac, tmp_path, replay_device="device", buffer_size=10_000)


@pytest.mark.parametrize(
    ("device", "free", "options", "chosen"),
    [
        ("cuda", 2**30, {}, True),
        ("cuda", 10_000, {}, False),  # no room
        ("cuda", 2**30, {"hindsight": "final"}, False),
        ("cuda", 2**30, {"replay_device": "host"}, False),
        ("cpu", 2**30, {}, False),
        ("cpu", 2**30, {"replay_device": "device"}, True),
    ],
)
def test_replay_device_depends_on_room_and_options(monkeypatch, device, free, options, chosen):
    monkeypatch.setattr(device_replay, "free_bytes", lambda device: free)
    with contextlib.closing(make_vec(EnvSpec(ENVS[sac], seed=0), 1)) as envs:
        config = sac.Config(**{**SMALL, **options})
        assert device_replay.is_on_device(config, envs, torch.device(device)) is chosen


@pytest.mark.parametrize(("replay", "chosen"), [("uniform", True), ("prioritized", False)])
def test_replay_device_of_images_depends_on_the_sampler(monkeypatch, replay, chosen):
    monkeypatch.setattr(device_replay, "free_bytes", lambda device: 2**40)
    with contextlib.closing(make_vec(EnvSpec(toy_images.Catch, seed=0), 1)) as envs:
        config = dqn.Config(**SMALL, replay=replay)
        assert device_replay.is_on_device(config, envs, torch.device("cuda")) is chosen


def test_launches_without_room_are_refused(monkeypatch):
    """The error comes at the start of the run, where the device is known."""
    monkeypatch.setattr(device_replay, "free_bytes", lambda device: 10)
    config = sac.Config(**{**SMALL, "num_envs": 2}, device="cuda", updates_per_launch=2)
    envs = contextlib.closing(make_vec(EnvSpec(ENVS[sac], seed=0), 2))
    with envs as vec_env, pytest.raises(ConfigError, match="reports the reason"):
        device_replay.is_on_device(config, vec_env, torch.device("cuda"))


def test_prioritized_replay_refuses_updates_without_td_errors(tmp_path):
    """A custom algorithm's update does not return |TD error|."""

    def update(state, batch, noise, hyper, *, nets, config):
        metrics, _ = dqn.update(state, batch, noise, hyper, nets=nets, config=config)
        return metrics

    algorithm = dataclasses.replace(dqn.algorithm, updates=(off_policy.Update(function=update),))
    config = make_config(dqn, tmp_path, replay="prioritized", replay_device="device")
    with pytest.raises(ConfigError, match="draws by TD error, and the updates of 'dqn' return no"):
        algorithm.train(config, env=ENVS[dqn])


# --- imports and tracing --------------------------------------------------------------------------


def test_neither_numba_nor_tyro_is_needed(tmp_path):
    source = f"""
import sys
sys.modules["numba"] = sys.modules["tyro"] = None
from hotloop.algorithms import dqn
from tests import toy_envs
options = {SMALL!r} | {{"run_dir": {str(tmp_path / "run")!r}, "replay_device": "device"}}
print(dqn.train(dqn.Config(**options), env=toy_envs.ChooseTheSign, progress=False).status)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "finished"


@each_algorithm
def test_launch_is_recorded_without_copies_of_the_replay(algorithm):
    """The recording before compilation reads no values and replaces no tensors."""
    config = algorithm.Config(
        replay_device="device", updates_per_launch=2, **{**SMALL, "num_envs": 2}
    )
    with contextlib.closing(make_vec(EnvSpec(ENVS[algorithm], seed=0), 2)) as envs:
        replay = ReplayOnDevice(config, envs, torch.device("cpu"), is_scaled=config.normalize_obs)
        fill(envs, replay.buffer)
        learner = learner_of(algorithm, envs, config)
        launches = Launches(learner, replay, 2)
        calls = []
        for execution in learner.executions:
            execution._update = recording_arguments(execution._update, calls)
        launches.run(2, None)
        (arguments,) = calls
        replay.fill_inbox(2, None)
        replay.buffer.send()
        before = {name: x.clone() for name, x in tensors(replay.buffer.stored).items()}
        recording = artifacts.record(learner.executions[0]._update, arguments)
        assert recording.returns_tuple
        stored = replay.buffer.stored
        assert copy.deepcopy(stored) is stored
        assert tensors(stored, skip_shared=True) == {}
        for name, tensor in tensors(stored).items():
            if name == "rows":  # the content of the spare row does not matter
                tensor, before[name] = tensor[:-1], before[name][:-1]
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def recording_arguments(update, calls):
    def wrapped(*arguments):
        calls.append(arguments)
        return update(*arguments)

    return wrapped


@each_algorithm
def test_launch_as_a_cuda_graph_equals_eager(algorithm):
    """A stand-in replaces the device. The stored transitions are not copied."""
    config = algorithm.Config(
        replay_device="device", updates_per_launch=2, **{**SMALL, "num_envs": 2}
    )
    with contextlib.closing(make_vec(EnvSpec(ENVS[algorithm], seed=0), 2)) as envs:
        learners = [learner_of(algorithm, envs, config) for _ in range(2)]
        replays = [
            ReplayOnDevice(config, envs, torch.device("cpu"), is_scaled=config.normalize_obs)
            for _ in learners
        ]
        launches = [Launches(*pair, 2) for pair in zip(learners, replays, strict=True)]
        for execution in learners[1].executions:
            execution.choice = ExecutionChoice(False, "", is_captured=True)
            captured_state = (learners[1].state, learners[1].hyper.tensors)
            execution._capturer = FakeCapturer(captured_state)
        for number in range(4):
            numbers = []
            for launch, replay in zip(launches, replays, strict=True):
                fill(envs, replay.buffer, num_steps=20, seed=number)  # the ring wraps around
                launch.run(2, None)
                numbers.append(torch.stack(launch.drain_log()))
            assert torch.equal(*numbers)
            assert torch.equal(*(replay.buffer.stored.rows[:-1] for replay in replays))
        want = tensors(learners[0].state)
        for name, tensor in tensors(learners[1].state).items():
            torch.testing.assert_close(tensor, want[name], rtol=0, atol=0)
        graph_metrics, eager_metrics = metrics_of(learners[1]), metrics_of(learners[0])
        for name, rows in graph_metrics.items():
            np.testing.assert_array_equal(rows, eager_metrics[name])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "execution",
    ["eager", "cudagraph", pytest.param("compile+cudagraph", marks=pytest.mark.slow)],
)
@each_algorithm
def test_training_on_a_gpu_finishes(tmp_path, algorithm, execution):
    options = {"env_id": LONG[algorithm], "num_envs": 4, "device": "cuda", "execution": execution}
    for name, kind in (("a", "uniform"), ("b", "prioritized")):
        result = train(algorithm, tmp_path, name=name, replay=kind, updates_per_launch=4, **options)
        assert result.status == "finished"
        assert "launch of 4" in result.execution


@pytest.mark.slow
def test_compiled_launch_equals_eager(tmp_path):
    options = {"num_envs": 4, "replay_device": "device", "updates_per_launch": 4}
    for name, execution in (("a", "eager"), ("b", "compile")):
        result = train(td3, tmp_path, name=name, execution=execution, **options)
    assert (
        "launch of 4 (4 × update of the critics, 2 × update of the policy): compiled, as req"
        in (result.execution)
    )
    want = weights_of(tmp_path / "a")
    for name, array in weights_of(tmp_path / "b").items():
        np.testing.assert_allclose(array, want[name], rtol=1e-3, atol=1e-4, err_msg=name)
