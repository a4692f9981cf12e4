"""Central inference on Ray: what it computes, in which batches, and what becomes of its death."""

import asyncio
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from hotloop.algorithms import appo, dqn, ppo
from hotloop.envs import make_vec
from hotloop.errors import ConfigError, HotloopError
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.policies.snapshot import ObsScale
from tests import toy_envs
from tests.toy_images import Catch

ray = pytest.importorskip("ray", reason="Ray is not installed")

from hotloop.rollouts.ray.inference import AskingPolicy, Inference, Weights  # noqa: E402
from hotloop.rollouts.ray.recording import Recorded  # noqa: E402
from tests.rollouts.ray import test_ray  # noqa: E402
from tests.rollouts.ray.test_ray import assert_adds_up, lines_of, pids_of, train  # noqa: E402

cluster = test_ray.cluster  # one Ray for all
CENTRAL = {"backend": "ray", "inference": "central"}


def network_of(env="CartPole-v1", *, action_masks=False, **options):
    envs = make_vec(env, 1, action_masks=action_masks)
    try:
        return actor_critic(envs, hidden_sizes=(8,), **options)
    finally:
        envs.close()


def snapshot_of(network, version=1, *, scale=False):
    params = network.initial_parameters(version)
    shape = network.obs_spec.shape
    mean = np.full(shape, 0.5, np.float32)
    scaled = ObsScale(mean, np.full(shape, 2.0, np.float32), 10.0) if scale else None
    return PolicySnapshot(version, params, scaled)


def inference_of(network, monkeypatch):
    """The actor's class, here."""
    monkeypatch.setattr("hotloop.rollouts.ray.inference.record", lambda recorded: "here")
    return Inference(network.to_json(), "cpu", Recorded("inference-0", "", "", "", ""))


class Ref:
    """A reference to what is there."""

    def __init__(self, snapshot):
        self.snapshot, self.fetched = snapshot, 0

    def __await__(self):
        self.fetched += 1
        yield from ()
        return self.snapshot


# --- what is computed ----------------------------------------------------------------------------


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_who_asks_is_told_what_the_network_gives(monkeypatch, has_memory, scale):
    network = network_of(memory="gru:4") if has_memory else network_of()
    snapshot = snapshot_of(network, scale=scale)
    inference = inference_of(network, monkeypatch)

    def ask(*given):
        return asyncio.run(inference.ask(*given))

    remote = SimpleNamespace(ask=SimpleNamespace(remote=ask))
    monkeypatch.setattr("ray.get", lambda answer, timeout: answer)
    waited = []
    own = ActingPolicy(network, snapshot)
    asking = AskingPolicy(
        network,
        snapshot,
        exploration=None,
        inference=remote,
        on_wait=lambda: waited.append(1),
    )
    asking.read(Weights(1, [Ref(snapshot)]))
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(3, *network.obs_spec.shape)).astype(np.float32)
    memory = rng.normal(size=(3, network.memory_size)).astype(np.float32) if has_memory else None
    theirs = None if memory is None else memory.copy()
    before = None if memory is None else memory.copy()
    expected, value = own.head_and_value(obs, None, memory)
    out = np.empty_like(expected)
    np.testing.assert_array_equal(asking.head(obs, out, theirs), expected)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(asking.last_value(), value)
    np.testing.assert_array_equal(asking.value(obs, before), value)
    if has_memory:
        np.testing.assert_array_equal(theirs, memory)
    assert asking.answered_by == ("here", os.getpid())
    assert len(waited) == 2  # the value of what was acted on came with it


def test_masked_actions_are_masked(monkeypatch):
    network = network_of(partial(toy_envs.Allowed, (3,)), action_masks=True)
    snapshot, inference = snapshot_of(network), inference_of(network, monkeypatch)
    obs = np.zeros((2, *network.obs_spec.shape), np.float32)
    obs[0, -1] = 1.0
    answer = asyncio.run(inference.ask(Weights(1, [Ref(snapshot)]), obs, None))
    np.testing.assert_array_equal(answer.head, ActingPolicy(network, snapshot).head(obs))


def test_all_that_ask_at_once_are_one_batch_of_one_version(monkeypatch):
    network = network_of()
    inference = inference_of(network, monkeypatch)
    snapshots = {version: snapshot_of(network, version) for version in (1, 2, 3)}
    refs = {version: Ref(snapshot) for version, snapshot in snapshots.items()}
    policies = {v: ActingPolicy(network, snapshot) for v, snapshot in snapshots.items()}
    batches = []

    def noted(self, obs, out, memory, whole=ActingPolicy.head_and_value):
        batches.append((self.version, len(obs)))
        return whole(self, obs, out, memory)

    monkeypatch.setattr(ActingPolicy, "head_and_value", noted)
    rng = np.random.default_rng(0)
    asked = [
        (version, rng.normal(size=(count, 4)).astype(np.float32))
        for version, count in ((1, 2), (2, 1), (1, 3), (3, 1), (2, 2))
    ]

    async def all_at_once():
        return await asyncio.gather(
            *(inference.ask(Weights(n, [refs[n]]), obs, None) for n, obs in asked)
        )

    answers = asyncio.run(all_at_once())
    assert batches == [(1, 5), (2, 3), (3, 1)]
    assert [refs[version].fetched for version in (1, 2, 3)] == [1, 1, 1]
    for (version, obs), answer in zip(asked, answers, strict=True):
        np.testing.assert_allclose(answer.head, policies[version].head(obs), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(answer.value, policies[version].value(obs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("env", "options"), [("CartPole-v1", {}), (Catch, {"network": "impala"})])
def test_publications_of_one_version_are_told_apart_and_few_are_kept(monkeypatch, env, options):
    """Off policy a version may be published again with what observations are scaled by now."""
    network = network_of(env, **options)
    inference = inference_of(network, monkeypatch)
    snapshots = {
        n: replace(snapshot_of(network, 1 + n % 2, scale=bool(n % 2)), version=1) for n in range(12)
    }
    obs = np.random.default_rng(0).normal(size=(2, *network.obs_spec.shape), scale=9.0)
    obs = abs(obs).astype(network.obs_spec.dtype)
    expected = [ActingPolicy(network, snapshots[n]).head(obs) for n in (0, 1)]
    assert not np.allclose(*expected)
    refs = {n: Ref(snapshot) for n, snapshot in snapshots.items()}
    for n in (*range(12), 5, 11, 0, 5):
        answer = asyncio.run(inference.ask(Weights(n, [refs[n]]), obs, None))
        np.testing.assert_array_equal(answer.head, expected[n % 2])
    # The eight that were asked for last are there.
    assert [refs[n].fetched for n in range(12)] == [2, *[1] * 11]


def test_who_gave_up_holds_up_nobody(monkeypatch):
    network = network_of()
    inference, weights = inference_of(network, monkeypatch), Weights(1, [Ref(snapshot_of(network))])
    obs = np.zeros((1, 4), np.float32)

    async def both():
        asked = [asyncio.ensure_future(inference.ask(weights, obs, None)) for _ in range(2)]
        await asyncio.sleep(0)
        asked[0].cancel()
        await asked[1]
        return await inference.ask(weights, obs, None)

    assert asyncio.run(both()).head.shape == (1, 2)


def test_an_error_is_told_to_who_asked_and_to_nobody_after(monkeypatch):
    network = network_of()
    inference, snapshot = inference_of(network, monkeypatch), snapshot_of(network)
    wrong, right = np.zeros((1, 7), np.float32), np.zeros((1, 4), np.float32)
    with pytest.raises(HotloopError, match=r"inference-0: ValueError: .*7"):
        asyncio.run(inference.ask(Weights(1, [Ref(snapshot)]), wrong, None))
    assert asyncio.run(inference.ask(Weights(1, [Ref(snapshot)]), right, None)).head.shape == (1, 2)


# --- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"normalize_obs": True}, {"memory": "gru:4"}])
def test_it_learns_what_workers_do_that_act_by_themselves(tmp_path, options):
    """The first iteration, before the last bits of sums have made anything of themselves."""
    given = {"backend": "ray", "total_timesteps": 64, **options}
    for inference in ("worker", "central"):
        train(tmp_path / inference, inference=inference, **given)
    first, second = (
        load_file(tmp_path / inference / "checkpoints" / "last" / "learner.safetensors")
        for inference in ("worker", "central")
    )
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_nothing_is_too_old_where_two_actors_compute(tmp_path):
    given = {**CENTRAL, "inference_actors": 2, "schedule": "async", "max_policy_age": 2}
    told = train(tmp_path / "run", appo, total_timesteps=64 * 8, **given).accounting
    assert_adds_up(told)
    assert told["trained"] == 64 * 8
    assert max(line["age_max"] for line in lines_of(tmp_path / "run")) <= 2
    names = {path.name.partition(".")[0] for path in (tmp_path / "run" / "timing").iterdir()}
    assert {"inference-0", "inference-1"} <= {name.rpartition("-")[0] for name in names}


def test_what_learns_from_replay_explores_here(tmp_path):
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
            has_torch[name] = {"/torch/" in one for one in maps}

    train(tmp_path / "run", env=Catch, network="impala", **CENTRAL, on_report=look)
    assert has_torch == {"Actor": {False}, "Inference": {True}}


def test_an_inference_actor_that_is_killed_is_asked_again(tmp_path):
    killed = []

    def kill(report):
        if len(killed) < 2 and report.timesteps >= 128 * (1 + len(killed)):
            (pid,) = [pid for pid in pids_of("-f", "ray::Inference") if pid not in killed]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    with pytest.warns(RuntimeWarning, match=r"inference actor 0 died, and Ray has started"):
        told = train(tmp_path / "run", **CENTRAL, total_timesteps=64 * 8, on_report=kill).accounting
    assert len(killed) == 2
    # No step is lost, and nobody else is replaced.
    assert told["trained"] == told["collected"] == 64 * 8
    assert sum(worker["restarts"] for worker in told["workers"]) == 0


def test_an_inference_actor_that_dies_too_often_ends_it_with_its_name(tmp_path):
    def kill(report):
        for pid in pids_of("-f", "ray::Inference"):
            os.kill(pid, signal.SIGKILL)

    message = r"worker \d: inference: .*(died|dead|unavailable|restart)"
    with pytest.raises(HotloopError, match=message):
        train(tmp_path / "run", **CENTRAL, max_failures=0, on_report=kill)


def test_waiting_for_inference_is_no_step_that_takes_too_long(tmp_path):
    """The alarm of each worker rings after 0.66 s, and an actor takes longer to start."""
    killed = []

    def kill(report):
        if not killed:
            killed.extend(pids_of("-f", "ray::Inference"))
            os.kill(killed[0], signal.SIGKILL)

    given = {**CENTRAL, "step_timeout_s": 0.3, "network": "impala"}
    with pytest.warns(RuntimeWarning, match="inference actor 0 died, and Ray has started"):
        told = train(tmp_path / "run", env=Catch, on_report=kill, **given).accounting
    assert sum(worker["restarts"] for worker in told["workers"]) == 0


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inference": "auto"}, "got `backend` 'ray': choose worker or central"),
        ({"inference_actors": 2}, "'ray' with `inference` 'central', got 'ray' with 'worker'"),
        ({**CENTRAL, "inference_resources": {"num_gpus": "x"}}, "`inference_resources` are"),
        (
            {"backend": "processes", "inference": "central", "inference_resources": {"a": 1}},
            "got 'processes' with 'central': set both, or leave them at 1 and {}",
        ),
        ({**CENTRAL, "inference_actors": 3}, "3 `inference_actors` for 2 `workers`"),
        ({**CENTRAL, "inference_resources": {"num_gpus": 2}}, "on one GPU, got `num_gpus` 2: ask"),
    ],
)
def test_refuses_what_does_not_fit(options, message):
    with pytest.raises(ConfigError, match=message):
        ppo.Config(**{"backend": "ray", "workers": 2, "num_envs": 2, **options})


def test_room_that_there_is_not_is_named(tmp_path):
    message = (
        r"2 workers of `num_cpus` 1 each and 1 inference actors of `num_cpus` 3 each need 5, and "
        r"the cluster has 4: use fewer `inference_actors`, lower `inference_resources`"
    )
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", **CENTRAL, inference_resources={"num_cpus": 3})
    message = r"1 inference actors of `num_gpus` 0.5 each need 0.5, and the cluster has 0"
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", **CENTRAL, inference_resources={"num_gpus": 0.5})
