"""TD3+BC: the update against its twin, and runs from a data set of Minari."""

import json

import numpy as np
import pytest
import torch

from hotloop.algorithms import td3_bc
from hotloop.errors import ConfigError
from hotloop.learner import torch_threads
from hotloop.training import check_algorithm
from tests import toy_envs
from tests.algorithms.learners import assert_learner_is_restored, make_learner_setup
from tests.algorithms.test_sac import SMALL, UNEVEN, UNIT
from tests.minari_data import random_episodes, write_dataset
from tests.reference import off_policy as reference

PENDULUM = "minari:pendulum/test-v0"


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


@pytest.fixture
def pendulum(monkeypatch, tmp_path):
    """Write a data set with the spaces of Pendulum-v1."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    write_dataset("pendulum/test-v0", random_episodes((3,), (1,), bound=2.0))


@pytest.mark.parametrize("q_weight", [2.5, 0.0])
@pytest.mark.parametrize(("action_spec", "weighed"), [(UNIT, False), (UNEVEN, True)])
def test_update_equals_the_reference(q_weight, action_spec, weighed):
    """20 updates, compared with torch modules in float64 and torch's Adam."""
    options = {"learning_rate": 4e-3, "q_weight": q_weight}
    setup = make_learner_setup(td3_bc.algorithm, action_spec, **{**SMALL, **options})
    nets, state = setup.nets, setup.state
    peer = reference.TD3BC(
        action_spec,
        nets.policy.layout.unpack(state.policy),
        nets.critics.layout.unpack(state.critics),
        setup.config,
    )
    draw_noise, rows = setup.draw_noise(), []
    for k in range(20):
        batch = reference.random_batch(3, action_spec, 32, seed=k, weighed=weighed)
        setup.update(batch)
        rows += peer.update(batch, draw_noise)[1]
    expected, means = reference.means(rows), setup.means()
    for name in ("policy_loss", "imitation_loss"):
        assert means[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-4)
    assert (means["policy_loss"] == pytest.approx(means["imitation_loss"])) == (q_weight == 0)
    for flat, module in ((state.policy, peer.policy), (state.policy_target, peer.policy_target)):
        named = nets.policy.layout.unpack(flat)
        reference.assert_same_parameters(reference.actor_module(setup.config, named), module)


def test_loss_of_a_worked_case():
    """With Q = 4 for all actions, λ = 2.5 / 4 and −λ Q = −2.5 whatever the critic's scale."""

    class Critics:
        def first_values(self, params, obs, action):
            return torch.full((2,), 4.0) + 0.0 * action[:, 0]

    class Head:
        def act(self, outputs):
            return outputs

    class Policy:
        head = Head()

        def outputs(self, params, obs):
            return params.reshape(2, 1), None

    nets = td3_bc.Networks(Policy(), Critics())
    batch = reference.random_batch(3, UNIT, 2, seed=0)
    action = torch.tensor([[0.0], [1.0]])
    params = torch.tensor([0.5, 0.5])
    loss, (imitation,) = td3_bc.policy_loss(
        params, torch.empty(0), batch, action, torch.tensor(2.5), nets
    )
    assert imitation.item() == pytest.approx(0.25)
    assert loss.item() == pytest.approx(0.25 - 2.5)


def test_learner_is_restored():
    def make_batch(k):
        return reference.random_batch(3, UNIT, SMALL["batch_size"], seed=k)

    assert_learner_is_restored(td3_bc.algorithm, UNIT, make_batch, **SMALL)


UNSET = {
    "num_envs": 1,
    "learning_starts": 0,
    "buffer_size": 1_000_000,
    "save_replay": False,
    "update_to_data": 1.0,
}


def test_contract_with_resume(pendulum):
    """The resumed run is equal bit for bit, without a saved buffer."""
    options = {**UNSET, "replay_from": PENDULUM, "eval_interval": None}
    check_algorithm(td3_bc.algorithm, env="Pendulum-v1", **options)


@pytest.mark.slow
def test_compiled_updates_equal_eager_ones(pendulum):
    options = {**UNSET, "replay_from": PENDULUM, "eval_interval": None}
    check_algorithm(td3_bc.algorithm, env="Pendulum-v1", compiled=True, **options)


def test_cloning_imitates_the_data_without_steps(monkeypatch, tmp_path):
    """The data's actions are 0.8 · sign(target). Observations are normalized over the data set."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env = toy_envs.ReachTheTarget()
    rng = np.random.default_rng(0)
    shape = env.observation_space.shape
    obs = rng.uniform(0.2, 1.0, (401, *shape)) * rng.choice([-1, 1], (401, *shape))
    size = env.action_space.shape[0]
    action = np.clip(0.8 * np.sign(obs[:-1, :size]), env.action_space.low, env.action_space.high)
    episode = {
        "observations": obs.astype(np.float32),
        "actions": action.astype(np.float32),
        "rewards": np.zeros(400),
        "terminations": np.zeros(400, bool),
        "truncations": np.arange(400) == 399,
    }
    write_dataset("toy/signs-v0", [episode], env.observation_space, env.action_space)
    config = td3_bc.Config(
        replay_from="minari:toy/signs-v0",
        q_weight=0.0,
        total_timesteps=400,
        policy_frequency=1,
        batch_size=64,
        hidden_sizes=(32,),
        learning_rate=1e-2,
        execution="eager",
        torch_threads=1,
        eval_interval=200,
        report_interval=100,
        eval_episodes=2,
        run_dir=str(tmp_path / "run"),
    )
    steps = []
    step = toy_envs.ReachTheTarget.step
    monkeypatch.setattr(
        toy_envs.ReachTheTarget, "step", lambda *args: steps.append(1) or step(*args)
    )
    result = td3_bc.train(config, env=toy_envs.ReachTheTarget, progress=False)
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["num_updates"] == 400
    assert [x["timesteps"] for x in lines if x.get("evaluation")][-1] == 400
    got = result.policy.act(obs[:200].astype(np.float32))
    assert np.abs(got - action[:200]).mean() < 0.1
    scale = result.policy.snapshot.obs_scale
    np.testing.assert_allclose(scale.mean, obs[:-1].mean(0), atol=1e-5)
    np.testing.assert_allclose(scale.std, obs[:-1].std(0), rtol=1e-4)
    assert np.isinf(scale.clip)
    assert len(steps) == 4  # of the evaluations


def test_batches_may_be_larger_than_the_number_of_updates():
    """No steps are collected, so the first update has a whole batch."""
    config = td3_bc.Config(replay_from=PENDULUM, total_timesteps=3, batch_size=256)
    assert config.batch_size == 256


def test_fine_tuning_keeps_the_scale_of_observations(pendulum, tmp_path):
    """The networks of the first run expect it. Evaluations log numbers of the environment."""
    episodes = random_episodes((3,), (1,), bound=2.0)
    shifted = [{**x, "observations": x["observations"] + np.float32(5)} for x in episodes]
    write_dataset("pendulum/shifted-v0", shifted)
    small = {"hidden_sizes": (8,), "batch_size": 8, "total_timesteps": 8, "torch_threads": 1}
    small |= {"execution": "eager", "eval_interval": None, "log_info": ["x"]}
    scales = []
    for name, init_from in (("test", None), ("shifted", str(tmp_path / "test"))):
        config = td3_bc.preset(
            "Pendulum-v1",
            replay_from=f"minari:pendulum/{name}-v0",
            run_dir=str(tmp_path / name),
            init_from=init_from,
            **small,
        )
        scales.append(td3_bc.train(config, progress=False).policy.snapshot.obs_scale)
    np.testing.assert_array_equal(scales[1].mean, scales[0].mean)


def test_options_that_need_steps_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="`num_envs` 4 has no effect, because td3_bc learns from"):
        td3_bc.Config(num_envs=4)
    with pytest.raises(ConfigError, match="`replay` 'prioritized' has no effect"):
        td3_bc.Config(replay="prioritized")
    config = td3_bc.Config(run_dir=str(tmp_path / "run"), torch_threads=1)
    with pytest.raises(ConfigError, match="set `replay_from` 'minari:NAME'"):
        td3_bc.train(config, progress=False)
    assert not (tmp_path / "run").exists()
