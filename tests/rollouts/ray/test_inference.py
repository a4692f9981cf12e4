"""Central inference on Ray: outputs, batches and failures."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from hotloop.algorithms import appo, dqn, ppo
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError, HotloopError
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.policies.snapshot import ObsScale
from tests.toy_images import Catch

ray = pytest.importorskip("ray", reason="Ray is not installed")

from hotloop.rollouts.ray.inference import InferenceActor, RemotePolicy, WeightsRef  # noqa: E402
from hotloop.rollouts.ray.recording import RecordingOptions  # noqa: E402
from tests.rollouts.ray.test_ray import assert_adds_up, lines_of, pids_of, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("cluster")
CENTRAL = {"backend": "ray", "inference": "central"}


def make_network(env="CartPole-v1", **options):
    envs = make_vec(EnvSpec(env), 1)
    try:
        return actor_critic(envs, hidden_sizes=(8,), **options)
    finally:
        envs.close()


def make_snapshot(network, version=1, *, scale=False):
    params = network.initial_parameters(version)
    shape = network.obs_spec.shape
    mean = np.full(shape, 0.5, np.float32)
    scaled = ObsScale(mean, np.full(shape, 2.0, np.float32), 10.0) if scale else None
    return PolicySnapshot(version, params, scaled)


def make_inference(network, monkeypatch):
    """Make the actor's class in this process."""
    monkeypatch.setattr("hotloop.rollouts.ray.inference.start_recording", lambda options: "here")
    return InferenceActor(
        network.to_json(), "cpu", RecordingOptions("inference-0", "", "", "", "", "")
    )


class Ref:
    """A stand-in for a Ray object reference that counts fetches."""

    def __init__(self, snapshot):
        self.snapshot, self.fetched = snapshot, 0

    def __await__(self):
        self.fetched += 1
        yield from ()
        return self.snapshot


# --- outputs and batches -------------------------------------------------------------------------


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_a_remote_policy_returns_the_networks_outputs(monkeypatch, has_memory, scale):
    network = make_network(memory="gru:4") if has_memory else make_network()
    snapshot = make_snapshot(network, scale=scale)
    inference = make_inference(network, monkeypatch)

    def evaluate(*arguments):
        return asyncio.run(inference.evaluate(*arguments))

    remote = SimpleNamespace(evaluate=SimpleNamespace(remote=evaluate))
    monkeypatch.setattr("ray.get", lambda answer, timeout: answer)
    waits = []
    local = ActingPolicy(network, snapshot)
    remote_policy = RemotePolicy(
        network,
        snapshot,
        exploration=None,
        inference=remote,
        on_wait=lambda: waits.append(1),
    )
    remote_policy.set_weights(WeightsRef(1, [Ref(snapshot)]))
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(3, *network.obs_spec.shape)).astype(np.float32)
    memory = rng.normal(size=(3, network.memory_size)).astype(np.float32) if has_memory else None
    remote_memory = None if memory is None else memory.copy()
    initial_memory = None if memory is None else memory.copy()
    expected, value = local.head_and_value(obs, None, memory)
    out = np.empty_like(expected)
    np.testing.assert_array_equal(remote_policy.head(obs, out, remote_memory), expected)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(remote_policy.last_value(), value)
    np.testing.assert_array_equal(remote_policy.value(obs, initial_memory), value)
    if has_memory:
        np.testing.assert_array_equal(remote_memory, memory)
    assert remote_policy.answer_location == ("here", os.getpid())
    assert len(waits) == 2  # acting has also returned the value


def test_simultaneous_requests_form_one_batch_per_version(monkeypatch):
    network = make_network()
    inference = make_inference(network, monkeypatch)
    snapshots = {version: make_snapshot(network, version) for version in (1, 2, 3)}
    refs = {version: Ref(snapshot) for version, snapshot in snapshots.items()}
    policies = {v: ActingPolicy(network, snapshot) for v, snapshot in snapshots.items()}
    batches = []

    def record_batch(self, obs, out, memory, whole=ActingPolicy.head_and_value):
        batches.append((self.version, len(obs)))
        return whole(self, obs, out, memory)

    monkeypatch.setattr(ActingPolicy, "head_and_value", record_batch)
    rng = np.random.default_rng(0)
    requests = [
        (version, rng.normal(size=(count, 4)).astype(np.float32))
        for version, count in ((1, 2), (2, 1), (1, 3), (3, 1), (2, 2))
    ]

    async def all_at_once():
        return await asyncio.gather(
            *(inference.evaluate(WeightsRef(n, [refs[n]]), obs, None) for n, obs in requests)
        )

    answers = asyncio.run(all_at_once())
    assert batches == [(1, 5), (2, 3), (3, 1)]
    assert [refs[version].fetched for version in (1, 2, 3)] == [1, 1, 1]
    for (version, obs), answer in zip(requests, answers, strict=True):
        np.testing.assert_allclose(
            answer.outputs.head, policies[version].head(obs), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            answer.outputs.value, policies[version].value(obs), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(("env", "options"), [("CartPole-v1", {}), (Catch, {"network": "impala"})])
def test_publications_of_one_version_are_distinguished_and_few_are_cached(
    monkeypatch, env, options
):
    """Off-policy runs may publish a version again with a new observation scale."""
    network = make_network(env, **options)
    inference = make_inference(network, monkeypatch)
    snapshots = {
        n: replace(make_snapshot(network, 1 + n % 2, scale=bool(n % 2)), version=1)
        for n in range(12)
    }
    obs = np.random.default_rng(0).normal(size=(2, *network.obs_spec.shape), scale=9.0)
    obs = abs(obs).astype(network.obs_spec.dtype)
    expected = [ActingPolicy(network, snapshots[n]).head(obs) for n in (0, 1)]
    assert not np.allclose(*expected)
    refs = {n: Ref(snapshot) for n, snapshot in snapshots.items()}
    for n in (*range(12), 5, 11, 0, 5):
        answer = asyncio.run(inference.evaluate(WeightsRef(n, [refs[n]]), obs, None))
        np.testing.assert_array_equal(answer.outputs.head, expected[n % 2])
    # The eight most recently used publications are cached.
    assert [refs[n].fetched for n in range(12)] == [2, *[1] * 11]


def test_a_cancelled_request_blocks_no_other(monkeypatch):
    network = make_network()
    inference, weights = (
        make_inference(network, monkeypatch),
        WeightsRef(1, [Ref(make_snapshot(network))]),
    )
    obs = np.zeros((1, 4), np.float32)

    async def both():
        tasks = [asyncio.ensure_future(inference.evaluate(weights, obs, None)) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await tasks[1]
        return await inference.evaluate(weights, obs, None)

    assert asyncio.run(both()).outputs.head.shape == (1, 2)


def test_an_error_is_raised_for_its_request_only(monkeypatch):
    network = make_network()
    inference, snapshot = make_inference(network, monkeypatch), make_snapshot(network)
    wrong, right = np.zeros((1, 7), np.float32), np.zeros((1, 4), np.float32)
    with pytest.raises(HotloopError, match=r"inference-0: ValueError: .*7"):
        asyncio.run(inference.evaluate(WeightsRef(1, [Ref(snapshot)]), wrong, None))
    assert asyncio.run(
        inference.evaluate(WeightsRef(1, [Ref(snapshot)]), right, None)
    ).outputs.head.shape == (1, 2)


# --- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"normalize_obs": True}, {"memory": "gru:4"}])
def test_central_inference_learns_the_same_as_worker_inference(tmp_path, options):
    """Compare the first iteration, before rounding differences grow."""
    common = {"backend": "ray", "total_timesteps": 64, **options}
    for inference in ("worker", "central"):
        train(tmp_path / inference, inference=inference, **common)
    first, second = (
        load_file(tmp_path / inference / "checkpoints" / "last" / "learner.safetensors")
        for inference in ("worker", "central")
    )
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_two_inference_actors_respect_the_age_limit(tmp_path):
    options = {**CENTRAL, "inference_actors": 2, "schedule": "async", "max_policy_age": 2}
    counts = train(tmp_path / "run", appo, total_timesteps=64 * 8, **options).accounting
    assert_adds_up(counts)
    assert counts["trained"] == 64 * 8
    assert max(line["age_max"] for line in lines_of(tmp_path / "run")) <= 2
    names = {path.name.partition(".")[0] for path in (tmp_path / "run" / "timing").iterdir()}
    assert {"inference-0", "inference-1"} <= {name.rpartition("-")[0] for name in names}


def test_an_algorithm_with_replay_trains(tmp_path):
    config = dqn.Config(
        env_id="CartPole-v1",
        run_dir=str(tmp_path / "run"),
        workers=2,
        num_envs=2,
        learning_starts=64,
        hidden_sizes=(16,),
        execution="eager",
        total_timesteps=400,
        **CENTRAL,
    )
    assert dqn.train(config).accounting["trained"] >= 400


def test_workers_of_an_encoder_need_no_torch(tmp_path):
    has_torch = {}

    def look(report):
        for name in ("Actor", "Inference"):
            maps = [Path(f"/proc/{pid}/maps").read_text() for pid in pids_of("-f", f"ray::{name}")]
            has_torch[name] = {"/torch/" in text for text in maps}

    train(tmp_path / "run", env=Catch, network="impala", **CENTRAL, on_report=look)
    assert has_torch == {"Actor": {False}, "Inference": {True}}


def test_requests_are_repeated_after_an_inference_actor_is_killed(tmp_path):
    killed = []

    def kill(report):
        if len(killed) < 2 and report.timesteps >= 128 * (1 + len(killed)):
            (pid,) = [pid for pid in pids_of("-f", "ray::Inference") if pid not in killed]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    with pytest.warns(RuntimeWarning, match=r"inference actor 0 died, and Ray has restarted"):
        counts = train(
            tmp_path / "run", **CENTRAL, total_timesteps=64 * 8, on_report=kill
        ).accounting
    assert len(killed) == 2
    # No step is lost, and no worker is replaced.
    assert counts["trained"] == counts["collected"] == 64 * 8
    assert sum(worker["restarts"] for worker in counts["workers"]) == 0


def test_an_inference_actor_that_dies_too_often_ends_the_run(tmp_path):
    def kill(report):
        for pid in pids_of("-f", "ray::Inference"):
            os.kill(pid, signal.SIGKILL)

    message = r"worker \d: inference: .*(died|dead|unavailable|restart)"
    with pytest.raises(HotloopError, match=message):
        train(tmp_path / "run", **CENTRAL, max_failures=0, on_report=kill)


def test_waiting_for_inference_does_not_count_as_step_time(tmp_path):
    """Each worker's step timeout is 0.66 s. An inference actor takes longer to start."""
    killed = []

    def kill(report):
        if not killed:
            killed.extend(pids_of("-f", "ray::Inference"))
            os.kill(killed[0], signal.SIGKILL)

    options = {**CENTRAL, "step_timeout_s": 0.3, "network": "impala"}
    with pytest.warns(RuntimeWarning, match="inference actor 0 died, and Ray has restarted"):
        counts = train(tmp_path / "run", env=Catch, on_report=kill, **options).accounting
    assert sum(worker["restarts"] for worker in counts["workers"]) == 0


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inference": "auto"}, "got `backend` 'ray': choose worker or central"),
        ({"inference_actors": 2}, "2 is for `inference` 'central', got 'worker': set"),
        (
            {**CENTRAL, "inference_resources": {"num_gpus": "x"}},
            "`inference_resources` must be a dict of numbers",
        ),
        (
            {"backend": "processes", "inference": "central", "inference_resources": {"a": 1}},
            "is for `backend` 'ray', got 'processes': set `backend`, or leave",
        ),
        ({**CENTRAL, "inference_actors": 3}, "must not exceed `workers` = 2, got 3"),
        ({**CENTRAL, "inference_resources": {"num_gpus": 2}}, "must be at most 1, got 2: lower it"),
    ],
)
def test_conflicting_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ppo.Config(**{"backend": "ray", "workers": 2, "num_envs": 2, **options})


def test_missing_resources_are_named(tmp_path):
    message = (
        r"2 workers of `num_cpus` 1 each and 1 inference actors of `num_cpus` 3 each need 5, and "
        r"the cluster has 4: use fewer `inference_actors`, lower `inference_resources`"
    )
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", **CENTRAL, inference_resources={"num_cpus": 3})
    message = r"1 inference actors of `num_gpus` 0.5 each need 0.5, and the cluster has 0"
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", **CENTRAL, inference_resources={"num_gpus": 0.5})
