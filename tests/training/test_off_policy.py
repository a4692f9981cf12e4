"""Common parts of SAC, TD3 and DQN: number of updates, replay, resume, bad input."""

import dataclasses
import itertools
import json
import math
import os
import re
import signal

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.numpy import load_file

from hotloop.algorithms import dqn, ppo, sac, td3
from hotloop.base import memory, transfer
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    NonFiniteError,
    SpaceError,
)
from hotloop.learner import Learner
from hotloop.policies import ActingPolicy, TrainedPolicy
from hotloop.replay import Prioritized, Proportional, RankBased, Uniform
from hotloop.rollouts.evaluation import evaluate
from hotloop.rollouts.inline import InlineRollout
from hotloop.runs import RunDirectory
from hotloop.training import off_policy, replay_sources
from hotloop.training.forking import fork
from hotloop.training.replay import Replay
from tests import toy_envs
from tests.training.test_train import assert_same_run

SMALL = {
    "total_timesteps": 200,
    "learning_starts": 40,
    "batch_size": 16,
    "buffer_size": 500,
    "hidden_sizes": (8,),
    "train_frequency": 1,
    "update_to_data": 1.0,
    "report_interval": 50,
    "execution": "eager",
    "torch_threads": 1,
}
ENVS = {sac: toy_envs.ReachTheTarget, td3: toy_envs.ReachTheTarget, dqn: toy_envs.ChooseTheSign}
LONG = {sac: "Pendulum-v1", td3: "Pendulum-v1", dqn: "CartPole-v1"}  # episodes of many steps
CRITIC_METRICS = {"critic_loss", "q_value", "td_error"}
METRICS = {
    sac: {*CRITIC_METRICS, "policy_loss", "alpha_loss", "alpha", "entropy"},
    td3: {*CRITIC_METRICS, "policy_loss"},
    dqn: {"loss", "q_value", "td_error", "grad_norm"},
}
KINDS = ["uniform", "prioritized", "proportional", "rank"]

each_algorithm = pytest.mark.parametrize(
    "algorithm", [sac, td3, dqn], ids=lambda module: module.__name__.rpartition(".")[2]
)


def make_config(algorithm, tmp_path, name="run", **options):
    return algorithm.Config(run_dir=str(tmp_path / name), **{**SMALL, **options})


def train(algorithm, tmp_path, env=None, name="run", on_report=None, **options):
    if env is None and "env_id" not in options:
        env = ENVS[algorithm]
    config = make_config(algorithm, tmp_path, name, **options)
    return algorithm.train(config, env=env, on_report=on_report)


def lines_of(result):
    return RunDirectory.open(result.run_dir).metrics()


def weights_of(path):
    """Return the parameters and the learner's arrays of the last checkpoint."""
    checkpoint = RunDirectory.open(path).checkpoints.load()
    return {**checkpoint.snapshot.params, **checkpoint.arrays()}


def assert_same_weights(first, second):
    a, b = weights_of(first), weights_of(second)
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], name)


@pytest.fixture
def buffers(monkeypatch):
    """Record the replay buffers of the training."""
    created = []

    def record(*args):
        replay = Replay(*args)
        created.append(replay.buffer)
        return replay

    monkeypatch.setattr(replay_sources, "Replay", record)
    return created


def watch(monkeypatch, callback):
    """Call `callback(learner, batch, td_error)` after each update."""
    update = Learner.update

    def update_and_report(self, batch):
        td_error = update(self, batch)
        callback(self, batch, td_error)
        return td_error

    monkeypatch.setattr(Learner, "update", update_and_report)


@pytest.fixture
def learned_rows(monkeypatch):
    """Record all rows that DQN learns from: (obs, reward, next_obs, discount)."""
    rows = []

    def record(learner, batch, td_error):
        parts = (batch.obs, batch.reward[:, None], batch.next_obs, batch.discount[:, None])
        rows.extend(map(tuple, torch.cat(parts, 1).tolist()))

    watch(monkeypatch, record)
    return rows


class CountingSteps(gymnasium.Env):
    """An environment that observes its number and step; the reward doubles with each step."""

    observation_space = spaces.Box(0.0, 1e9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, number, length, ending):
        self.number, self.length, self.ending = number, length, ending

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.array([self.number, 0], np.float32), {}

    def step(self, action):
        reward = 2.0**self.count
        self.count += 1
        is_over = self.count == self.length
        obs = np.array([self.number, self.count], np.float32)
        return (
            obs,
            reward,
            is_over and self.ending == "terminated",
            is_over and self.ending == "truncated",
            {},
        )


class FaultAtStep(gymnasium.Wrapper):
    """A wrapper that calls `fault(result)` in one step, counted over all episodes."""

    def __init__(self, env, at, fault):
        super().__init__(env)
        self.countdown, self.fault = at, fault

    def step(self, action):
        result = self.env.step(action)
        self.countdown -= 1
        return self.fault(result) if self.countdown == 0 else result


def interrupt(result):
    signal.raise_signal(signal.SIGINT)
    return result


def fail(result):
    raise RuntimeError("the simulator diverged")


def overflow(result):
    obs, _, *tail = result
    return obs, 3e38, *tail


def faulty_factory(make, at, fault):
    """Return a factory whose first environment has the fault."""
    numbers = itertools.count()

    def factory():
        env = make()
        return FaultAtStep(env, at, fault) if next(numbers) == 0 else env

    return factory


# --- transitions ---------------------------------------------------------------------------------


# (number, step, reward, number, next step, γ^m, discount if the episode terminates), for an
# episode of 4 steps and one of 2, with γ = 0.5.
ONE_STEP = [
    (0, 0, 1.0, 0, 1, 0.5, 0.5),
    (0, 1, 2.0, 0, 2, 0.5, 0.5),
    (0, 2, 4.0, 0, 3, 0.5, 0.5),
    (0, 3, 8.0, 0, 4, 0.5, 0.0),
    (1, 0, 1.0, 1, 1, 0.5, 0.5),
    (1, 1, 2.0, 1, 2, 0.5, 0.0),
]
THREE_STEPS = [
    (0, 0, 3.0, 0, 3, 0.125, 0.125),  # 1 + 2/2 + 4/4
    (0, 1, 6.0, 0, 4, 0.125, 0.0),  # 2 + 4/2 + 8/4
    (0, 2, 8.0, 0, 4, 0.25, 0.0),  # 4 + 8/2
    (0, 3, 8.0, 0, 4, 0.5, 0.0),
    (1, 0, 2.0, 1, 2, 0.25, 0.0),  # 1 + 2/2
    (1, 1, 2.0, 1, 2, 0.5, 0.0),
]


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
@pytest.mark.parametrize(("n_step", "rows"), [(1, ONE_STEP), (3, THREE_STEPS)])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_termination_stops_the_bootstrap_and_truncation_does_not(
    tmp_path, learned_rows, ending, n_step, rows, num_envs
):
    numbers = itertools.count()

    def factory():
        number = next(numbers)
        return CountingSteps(number, length=4 if number == 0 else 2, ending=ending)

    train(dqn, tmp_path, factory, num_envs=num_envs, n_step=n_step, gamma=0.5)
    want = {
        (*row[:5], row[6] if ending == "terminated" else row[5])
        for row in rows
        if row[0] < num_envs
    }
    assert set(learned_rows) == want


@pytest.mark.parametrize(
    "options", [{}, {"replay": "prioritized"}, {"update_to_data": 4.0}], ids=str
)
def test_discount_follows_the_schedule_of_gamma(tmp_path, monkeypatch, options):
    """γ is 0.5 in the first half of 200 steps, then 0.25. A line of metrics covers 50 steps."""
    discounts = []
    watch(
        monkeypatch, lambda learner, batch, td_error: discounts.append(set(batch.discount.tolist()))
    )
    gamma, env = "steps:0=0.5,0.5=0.25", lambda: CountingSteps(0, 30, "truncated")
    result = train(dqn, tmp_path, env, gamma=gamma, **options)
    per_step = int(options.get("update_to_data", 1))
    first, second = 60 * per_step, 101 * per_step  # updates begin with step 40
    assert discounts == [{0.5}] * first + [{0.25}] * second
    assert [line["gamma"] for line in lines_of(result)] == [0.5, 0.25, 0.25, 0.25]


def test_gamma_changes_in_a_fork(tmp_path, learned_rows):
    """A member of a population continues with another γ."""
    config = make_config(dqn, tmp_path, gamma="steps:0=0.5", save_replay=True)

    def env():
        return CountingSteps(0, 30, "truncated")

    dqn.train(config, env=env, on_report=lambda report: report.timesteps >= 100)
    assert {row[-1] for row in learned_rows} == {0.5}
    learned_rows.clear()
    changed = dataclasses.replace(
        config, gamma="steps:0=0.5,0.505=0.25", run_dir=str(tmp_path / "fork")
    )
    fork(tmp_path / "run", tmp_path / "fork", changed)
    dqn.train(changed, env=env, resume_from=tmp_path / "fork")
    assert {row[-1] for row in learned_rows} == {0.25}


def test_value_converges_to_the_discounted_sum(tmp_path):
    """The reward is always 1, so the value is 1 / (1 − γ) = 2, wherever an episode is truncated."""
    options = {"total_timesteps": 1500, "learning_rate": 3e-3, "gamma": 0.5, "target_interval": 50}
    result = train(dqn, tmp_path, toy_envs.ConstantReward, num_envs=2, **options)
    obs = np.linspace(0, 0.9, 10, dtype=np.float32)[:, None].repeat(2, 1)
    np.testing.assert_allclose(result.policy.head(obs), 2.0, atol=0.1)


# --- whole trainings -----------------------------------------------------------------------------


@pytest.mark.slow
@each_algorithm
def test_learns(tmp_path, algorithm):
    options = {"hidden_sizes": (32, 32), "batch_size": 64, "learning_starts": 200}
    rates = {
        sac: {"policy_learning_rate": 3e-3, "critic_learning_rate": 3e-3, "policy_frequency": 1},
        td3: {"learning_rate": 1e-2, "policy_frequency": 1},
        dqn: {"learning_rate": 3e-3, "target_interval": 50},
    }
    length = {"total_timesteps": 400 if algorithm is dqn else 900, "buffer_size": 1000}
    result = train(algorithm, tmp_path, **options, **rates[algorithm], **length)
    assert result.status == "finished"
    single = ENVS[algorithm]()
    returns = []
    for seed in range(50):
        obs, _ = single.reset(seed=seed)
        returns.append(single.step(result.policy.act(obs))[1])
    # The best returns are 1 (DQN) and 0. Guessing gives 0.5, and doing nothing −0.17.
    assert np.mean(returns) > (0.98 if algorithm is dqn else -0.05)


@each_algorithm
def test_run_directory_holds_the_results(tmp_path, algorithm):
    reports = []
    options = {"total_timesteps": 220, "num_envs": 3, "on_report": reports.append}
    result = train(algorithm, tmp_path, checkpoint_interval=100, keep_checkpoints=9, **options)
    assert result.timesteps == 222  # whole rounds of 3
    assert result.status == "finished"
    assert result.execution.endswith("eager, as requested")
    run, lines = RunDirectory.open(result.run_dir), lines_of(result)
    # A report is due 50 transitions after the last one, in whole rounds; the last at the end.
    assert [line["timesteps"] for line in lines] == [51, 102, 153, 204, 222]
    assert [report.timesteps for report in reports] == [0, 51, 102, 153, 204, 222]
    assert [line["replay_size"] for line in lines] == [51, 102, 153, 204, 222]
    # The first update comes with the 40th transition, and the first round from there on ends at 42.
    assert [line["num_updates"] for line in lines] == [10, 61, 112, 163, 181]
    names = METRICS[algorithm]
    for line in lines:
        assert names < set(line)
        assert np.isfinite([line[name] for name in names]).all()
    assert sum(len(line["episode_returns"]) for line in lines) == 222  # of one step each
    assert reports[-1].mean_return == pytest.approx(result.mean_return)
    numbers = ["step-000000000102", "step-000000000204", "step-000000000222"]
    assert sorted(run.checkpoints.names()) == ["last", *numbers]
    _, snapshot, state = run.load_policy()
    assert (state["timesteps"], snapshot.version) == (222, 181)
    assert result.policy.version == 181
    obs = np.zeros(result.policy.network.obs_spec.shape, np.float32)
    network, snapshot, _ = run.load_policy()
    again = TrainedPolicy(ActingPolicy(network, snapshot))
    np.testing.assert_array_equal(again.act(obs), result.policy.act(obs))
    saved = json.loads((run.path / "config.json").read_text())
    assert saved["config"]["learning_starts"] == 40
    assert len(list((run.path / "timing").iterdir())) == 1


def test_evaluations_play_the_most_probable_actions(tmp_path):
    train(sac, tmp_path, eval_interval=100, eval_episodes=5, name="a")
    train(sac, tmp_path, name="b")
    run = RunDirectory.open(tmp_path / "a")
    evaluations = [line["evaluation"] for line in run.metrics() if "evaluation" in line]
    assert [evaluation["timesteps"] for evaluation in evaluations] == [100, 200]
    network, snapshot, _ = run.load_policy()
    envs = make_vec(EnvSpec(ENVS[sac], seed=1, stream="evaluation"), 1)
    episodes = evaluate(envs, ActingPolicy(network, snapshot), num_episodes=5)
    assert [episode.undiscounted_return for episode in episodes] == evaluations[1]["returns"]
    # Evaluations do not change the weights.
    assert_same_weights(tmp_path / "a", tmp_path / "b")


# --- replay --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sampler", "weight_from"),
    [
        ({}, Uniform(replacement=True), None),
        ({"replay_replacement": False}, Uniform(replacement=False), None),
        ({"replay": "prioritized"}, Prioritized(alpha=0.6, beta=0.4, beta_samples=160), None),
        (
            {"replay": "prioritized", "replay_alpha": 0.3, "replay_beta": 0.2},
            Prioritized(alpha=0.3, beta=0.2, beta_samples=160),
            None,
        ),
        ({"replay": "rank"}, RankBased(alpha=0.7, beta=0.5, beta_samples=160), None),
        (
            {"replay": "rank", "replay_alpha": 0.0, "replay_beta": 1},
            RankBased(alpha=0.0, beta=1, beta_samples=160),
            None,
        ),
        (
            {"replay": "proportional"},
            Proportional(replacement=False, shift="min"),
            "episode_return",
        ),
        (
            {
                "replay": "proportional",
                "replay_shift": 2.5,
                "replay_replacement": True,
                "replay_weight_from": "return_to_go",
            },
            Proportional(replacement=True, shift=2.5),
            "return_to_go",
        ),
    ],
)
def test_replay_settings_reach_the_buffer(options, sampler, weight_from):
    options = {"n_step": 2, "gamma": 0.9, "num_envs": 2, "seed": 3, **options}
    envs = make_vec("CartPole-v1", 2)
    config = dqn.Config(**{**SMALL, **options})
    buffer = Replay(config, envs, torch.device("cpu"), EnvSpec("CartPole-v1")).buffer
    envs.close()
    assert buffer.sampler == sampler
    expected = {"capacity": 500, "num_envs": 2, "n_step": 2, "gamma": 0.9}
    assert buffer.settings.items() >= {**expected, "weight_from": weight_from}.items()


@pytest.mark.parametrize(
    ("algorithm", "kind"), [*((dqn, kind) for kind in KINDS), (sac, "rank"), (td3, "proportional")]
)
def test_algorithm_draws_from_each_kind_of_replay(tmp_path, buffers, algorithm, kind):
    options = {"env_id": LONG[algorithm], "update_to_data": 2, "total_timesteps": 100}
    result = train(algorithm, tmp_path, replay=kind, **options)
    assert result.status == "finished"
    assert lines_of(result)[-1]["num_updates"] == 122
    (buffer,) = buffers
    assert buffer.num_added == 100
    if kind in ("prioritized", "rank"):
        assert buffer.num_samples == 122  # priorities change before the next batch is drawn
        assert len(set(buffer.sample(64).probability.tolist())) > 10


def test_priorities_are_td_errors(tmp_path, monkeypatch, buffers):
    """The errors that an update returns become the priorities of its transitions."""
    errors = []
    watch(
        monkeypatch,
        lambda _, batch, td_error: errors.append((batch.obs.numpy().copy(), td_error)),
    )
    options = {"replay": "prioritized", "replay_alpha": 1.0, "total_timesteps": 100}
    train(sac, tmp_path, **options)
    (buffer,) = buffers
    latest = {
        obs.tobytes(): error
        for batch, td_error in errors
        for obs, error in zip(batch, td_error.tolist(), strict=True)
    }
    batch = buffer.sample(64)
    weighed = {
        obs.tobytes(): probability
        for obs, probability in zip(batch.obs, batch.probability, strict=True)
    }
    known = [key for key in weighed if key in latest]
    assert len(known) > 20
    ratios = [weighed[key] / (latest[key] + 1e-6) for key in known]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-4)


def test_importance_weights_reach_the_loss(tmp_path, monkeypatch):
    weights = []
    watch(monkeypatch, lambda _, batch, __: weights.append(batch.importance.clone()))
    train(dqn, tmp_path, replay="prioritized")
    assert all(x.min() > 0 and x.max() <= 1 for x in weights)
    assert min(x.min() for x in weights) < 0.9
    weights.clear()
    train(dqn, tmp_path, name="uniform")
    assert all((x == 1).all() for x in weights)


@pytest.mark.parametrize("kind", ["uniform", "proportional"])
def test_a_batch_without_replacement_holds_nothing_twice(tmp_path, monkeypatch, kind):
    """Also if several updates are due and the buffer holds only one batch."""
    batches = []
    watch(monkeypatch, lambda _, batch, __: batches.append(batch.obs.tolist()))
    options = {"replay": kind, "replay_replacement": False, "update_to_data": 4}
    train(sac, tmp_path, learning_starts=16, total_timesteps=60, **options)
    assert len(batches) == 4 * 45
    assert all(len(set(map(tuple, obs))) == 16 for obs in batches)


# --- how many updates, and when ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        # One for each transition from the 40th on.
        ({}, [0, 0, 0, 1, 11, 21, 31, 41, 51, 61]),
        ({"update_to_data": 0.25}, [0, 0, 0, 0, 2, 5, 7, 10, 12, 15]),
        ({"update_to_data": 4, "num_envs": 2}, [0, 0, 0, 4, 44, 84, 124, 164, 204, 244]),
        ({"train_frequency": 5, "update_to_data": 0.3}, [0, 0, 0, 0, 3, 6, 9, 12, 15, 18]),
        ({"train_frequency": 5, "num_envs": 2}, [0, 0, 0, 1, 11, 21, 31, 41, 51, 61]),
        # The buffer must hold a batch.
        ({"learning_starts": 0}, [0, 5, 15, 25, 35, 45, 55, 65, 75, 85]),
        # With n_step 3, the last two transitions wait for their successors.
        ({"learning_starts": 0, "n_step": 3, "env_id": "CartPole-v1"}, None),
    ],
)
def test_updates_are_made_when_they_are_due(tmp_path, monkeypatch, options, updates):
    draws, draw = [], Replay.draw
    monkeypatch.setattr(
        Replay, "draw", lambda self, n, *args: (draws.append(n), draw(self, n, *args))[1]
    )
    result = train(dqn, tmp_path, total_timesteps=100, report_interval=10, **options)
    got = [int(line["num_updates"]) for line in lines_of(result)]
    if updates is None:
        assert 80 <= got[-1] <= 85
    else:
        assert got == updates
    assert sum(draws) == got[-1]
    if options.get("update_to_data") == 4:  # several batches are drawn at once
        assert draws == [4, *[8] * 30]
    if options.get("train_frequency") == 5 and "num_envs" in options:
        assert draws == [1, *[8, 2] * 6]


def test_the_target_network_moves_when_it_is_due(tmp_path):
    """It moves after every 20 transitions, at most once a round."""
    moved, rounds = [], []

    def move(state, count, hyper):
        assert not torch.equal(state.target, state.params)
        dqn.move_target(state, count, hyper)
        assert torch.equal(state.target, state.params)
        moved.append(count)

    def record_round(report):
        rounds.append((report.timesteps, moved.copy()))
        moved.clear()

    algorithm = dataclasses.replace(dqn.algorithm, move_targets=move)
    options = {"learning_starts": 45, "train_frequency": 7, "report_interval": 1}
    config = make_config(dqn, tmp_path, total_timesteps=105, target_interval=20, **options)
    algorithm.train(config, env=ENVS[dqn], on_report=record_round)
    assert [timesteps for timesteps, _ in rounds] == list(range(0, 106, 7))
    # Learning begins at transition 49, after two intervals.
    moves = {timesteps: counts for timesteps, counts in rounds if counts}
    assert moves == {49: [2], 63: [1], 84: [1], 105: [1]}


@pytest.mark.parametrize(("algorithm", "num_envs"), [(sac, 1), (td3, 3)])
def test_actions_are_uniform_until_learning_begins(tmp_path, algorithm, num_envs):
    actions = []

    class Records(toy_envs.ReachTheTarget):
        action_space = spaces.Box(
            np.array([-3.0, 0.5], np.float32), np.array([1.0, 1.0], np.float32)
        )

        def step(self, action):
            actions.append(action.copy())
            return super().step(action)

    # The policy's own actions are far from uniform.
    result = train(
        algorithm,
        tmp_path,
        Records,
        num_envs=num_envs,
        learning_starts=900,
        total_timesteps=930,
        report_interval=900,
        buffer_size=2000,
    )
    assert [line["num_updates"] for line in lines_of(result)] == [1, 31]
    assert len(actions) == 930
    everything = np.array(actions)
    assert (everything >= [-3.0, 0.5]).all()
    assert (everything <= [1.0, 1.0]).all()
    unit = (everything[:900] - [-3.0, 0.5]) / [4.0, 0.5]
    for column in unit.T:
        counts = np.histogram(column, bins=10, range=(0, 1))[0]
        assert counts.min() > 55  # of 90; six standard deviations are 54
        assert counts.max() < 145
    assert len(np.unique(unit[:, 0])) == 900


def test_trains_where_resets_cost_a_step(tmp_path, buffers):
    """Next-step autoreset: rows that are no transitions are neither counted nor learned from."""
    options = {"env_kwargs": {"num_envs": 4}, "num_envs": 4, "learning_rate": 3e-3}
    result = train(
        dqn,
        tmp_path,
        toy_envs.next_step_signs,
        total_timesteps=600,
        buffer_size=1000,
        exploration_fraction=0.3,
        target_interval=50,
        **options,
    )
    (buffer,) = buffers
    assert buffer.num_added == len(buffer) == result.timesteps == 600
    stored = buffer.get(np.arange(600))
    assert stored.terminated.all()
    np.testing.assert_array_equal(stored.reward, stored.action == (stored.obs[:, 0] > 0))
    lines = lines_of(result)
    assert lines[-1]["num_updates"] == 561
    assert sum(len(line["episode_returns"]) for line in lines) == 600
    assert result.mean_return > 0.8


# --- resume --------------------------------------------------------------------------------------


RESUMED = {"save_replay": True, "total_timesteps": 250, "checkpoint_interval": 100, "num_envs": 2}


def test_overlap_acts_with_the_previous_policy(tmp_path, monkeypatch):
    """Only reports publish the newest policy. A resumed run continues like an uninterrupted one."""
    options = {"device": "auto", "overlap": True, "report_interval": 60, "total_timesteps": 240}
    options["save_replay"] = True
    with pytest.raises(
        ConfigError, match="`overlap` needs a GPU for the updates, and `device` 'auto'"
    ):
        train(sac, tmp_path, **options)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(off_policy, "_require_gpu", lambda device: None)
    versions = []
    publish = InlineRollout.publish

    def record(self, snapshot):
        versions.append(snapshot.version)
        publish(self, snapshot)

    monkeypatch.setattr(InlineRollout, "publish", record)
    train(sac, tmp_path, name="whole", **options)
    # 21 updates until the report, each published one update later. The report adds the newest.
    assert versions[:24] == [*range(21), 21, 21, 22]
    parts = make_config(sac, tmp_path, "parts", **options)
    env = ENVS[sac]
    sac.train(parts, env=env, on_report=lambda report: report.timesteps >= 120)
    sac.train(parts, env=env, resume_from=tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("at", [133, 30])
def test_run_stopped_by_a_signal_resumes_exactly(tmp_path, at):
    """Ctrl-C arrives within a step. The round is finished, and no work is lost."""
    options = {**RESUMED, "num_envs": 1, "replay": "prioritized"}

    def make():
        return gymnasium.make(LONG[dqn])

    before = signal.getsignal(signal.SIGINT)
    train(dqn, tmp_path, faulty_factory(make, 0, None), name="whole", **options)
    assert signal.getsignal(signal.SIGINT) is before
    config = make_config(dqn, tmp_path, "parts", **options)
    factory = faulty_factory(make, at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        dqn.train(config, env=factory)
    run = RunDirectory.open(tmp_path / "parts")
    assert run.load_policy()[2]["timesteps"] == run.metrics()[-1]["timesteps"] == at
    reports = []
    result = dqn.train(config, env=factory, resume_from=run.path, on_report=reports.append)
    assert reports[0].resumed == f"resumed at {at} steps"
    assert result.timesteps == 250
    assert_same_weights(tmp_path / "whole", run.path)


def test_run_without_its_replay_resumes_with_an_empty_one(tmp_path, buffers):
    config = make_config(dqn, tmp_path, total_timesteps=300)
    env, reports = ENVS[dqn], []
    stopped = dqn.train(config, env=env, on_report=lambda report: report.timesteps >= 150)
    assert (stopped.status, stopped.timesteps) == ("stopped", 150)
    assert RunDirectory.open(tmp_path / "run").load_policy()[2]["timesteps"] == 150
    assert not list((tmp_path / "run").glob("checkpoints/*/replay.zip"))
    before = weights_of(tmp_path / "run")
    result = dqn.train(config, env=env, resume_from=tmp_path / "run", on_report=reports.append)
    assert reports[0].resumed == (
        "resumed at 150 steps; this checkpoint has no replay buffer, so it starts empty "
        "(`save_replay` saves it with the last checkpoint): learning waits for 40 transitions"
    )
    assert buffers[1].num_added == 150
    lines = lines_of(result)
    assert [line["timesteps"] for line in lines] == [50, 100, 150, 200, 250, 300]
    # Learning starts again at transition 150 + 40.
    assert [line["num_updates"] for line in lines] == [11, 61, 111, 122, 172, 222]
    after = weights_of(tmp_path / "run")
    assert not np.array_equal(before["policy.0.weight"], after["policy.0.weight"])
    assert np.abs(before["policy.0.weight"] - after["policy.0.weight"]).max() < 0.5


def test_run_is_resumed_while_its_new_buffer_fills(tmp_path):
    """With a saved buffer, the second resume waits only for the missing transitions."""
    config = make_config(dqn, tmp_path, total_timesteps=300, report_interval=10)
    path, env = tmp_path / "run", ENVS[dqn]
    dqn.train(config, env=env, on_report=lambda report: report.timesteps >= 150)
    keeps = dataclasses.replace(config, save_replay=True)
    dqn.train(keeps, env=env, on_report=lambda r: r.timesteps >= 170, resume_from=path)
    result = dqn.train(keeps, env=env, resume_from=path)
    updates = {line["timesteps"]: line["num_updates"] for line in lines_of(result)}
    assert [updates[t] for t in (150, 170, 180, 190, 200)] == [111, 111, 111, 112, 122]


@pytest.mark.parametrize("n_step", [1, 3])
def test_buffer_is_ahead_of_the_checkpoint_after_a_failure(tmp_path, learned_rows, n_step):
    """Transitions from after the checkpoint stay, and no n-step window spans the failure."""
    options = {"save_replay": True, "n_step": n_step, "gamma": 0.5, "buffer_size": 1000}
    config = make_config(dqn, tmp_path, **options)
    factory = faulty_factory(lambda: CountingSteps(0, 30, "terminated"), 133, fail)
    with pytest.raises(EnvironmentFailure, match="the simulator diverged"):
        dqn.train(config, env=factory)
    run = RunDirectory.open(tmp_path / "run")
    assert run.load_policy()[2]["timesteps"] == 100
    learned_rows.clear()
    reports = []
    result = dqn.train(config, env=factory, resume_from=run.path, on_report=reports.append)
    assert reports[0].resumed == (
        "resumed at 100 steps; the replay buffer holds 32 transitions from after the checkpoint"
    )
    assert result.timesteps == 200
    assert lines_of(result)[-1]["num_updates"] == 161
    for _, step, reward, _, next_step, discount in learned_rows:
        count = int(next_step - step)
        assert 1 <= count <= n_step
        assert reward == sum(0.5**k * 2.0 ** (step + k) for k in range(count))
        assert discount == (0.0 if next_step == 30 else 0.5**count)


def test_windows_end_where_an_episode_cannot_be_replayed(tmp_path, learned_rows):
    """The resumed run's environment differs from the first one, so the episode restarts."""
    numbers = itertools.count()
    config = make_config(dqn, tmp_path, save_replay=True, n_step=3, gamma=0.5)

    def factory():
        return CountingSteps(next(numbers), 30, "truncated")

    path, reports = tmp_path / "run", []
    dqn.train(config, env=factory, on_report=lambda report: report.timesteps >= 100)
    result = dqn.train(config, env=factory, resume_from=path, on_report=reports.append)
    assert "the episodes of 1 of 1 environments can't be replayed" in reports[0].resumed
    assert result.timesteps == 200
    assert {(row[0], row[3]) for row in learned_rows} == {(0, 0), (1, 1)}


def test_a_damaged_replay_file_loses_nothing(tmp_path):
    config = make_config(dqn, tmp_path, save_replay=True, checkpoint_interval=50)
    dqn.train(config, env=ENVS[dqn], on_report=lambda report: report.timesteps >= 150)
    run = RunDirectory.open(tmp_path / "run")
    file = run.path / "checkpoints" / "last" / "replay.zip"
    whole, before = file.read_bytes(), (run.checkpoints.names(), run.metrics())
    for content in (whole[:1000], whole[:-200], b"", whole.replace(b"PK", b"KP")):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"replay\.zip is cut short or damaged"):
            dqn.train(config, env=ENVS[dqn], resume_from=run.path)
        assert (run.checkpoints.names(), run.metrics()) == before
        assert file.read_bytes() == content
    file.write_bytes(whole)
    assert dqn.train(config, env=ENVS[dqn], resume_from=run.path).status == "finished"
    dqn.train(dataclasses.replace(config, run_dir=str(tmp_path / "whole")), env=ENVS[dqn])
    assert_same_run(tmp_path / "whole", run.path)


def test_a_replay_file_of_an_earlier_checkpoint_is_refused(tmp_path):
    config = make_config(dqn, tmp_path, save_replay=True)
    path = tmp_path / "run"
    dqn.train(config, env=ENVS[dqn], on_report=lambda report: report.timesteps >= 100)
    early = (path / "checkpoints" / "last" / "replay.zip").read_bytes()
    dqn.train(
        config, env=ENVS[dqn], resume_from=path, on_report=lambda report: report.timesteps >= 150
    )
    (path / "checkpoints" / "last" / "replay.zip").write_bytes(early)
    with pytest.raises(CheckpointError, match=r"50 transitions fewer than its checkpoint.*remove"):
        dqn.train(config, env=ENVS[dqn], resume_from=path)
    (path / "checkpoints" / "last" / "replay.zip").unlink()
    assert dqn.train(config, env=ENVS[dqn], resume_from=path).status == "finished"


def test_only_the_last_checkpoint_keeps_the_buffer(tmp_path):
    options = {"checkpoint_interval": 50, "eval_interval": 50, "eval_episodes": 1}
    result = train(dqn, tmp_path, save_replay=True, **options)
    folders = sorted((result.run_dir / "checkpoints").glob("step-*"))
    assert len(folders) >= 4
    assert [(folder / "replay.zip").exists() for folder in folders] == [
        *[False] * (len(folders) - 1),
        True,
    ]
    # An earlier checkpoint resumes without it.
    reports, config = [], make_config(dqn, tmp_path, save_replay=True, **options)
    dqn.train(config, env=ENVS[dqn], resume_from=folders[1], on_report=reports.append)
    assert "starts empty" in reports[0].resumed
    assert reports[-1].timesteps == 200


@pytest.mark.parametrize("kind", ["uniform", "rank"])
def test_a_run_with_its_replay_may_become_longer(tmp_path, buffers, kind):
    """The schedule of β extends over the longer run."""
    config = make_config(sac, tmp_path, save_replay=True, replay=kind)
    sac.train(config, env=ENVS[sac])
    longer, reports = dataclasses.replace(config, total_timesteps=300), []
    result = sac.train(
        longer, env=ENVS[sac], resume_from=tmp_path / "run", on_report=reports.append
    )
    assert result.timesteps == 300
    assert "the run now has 300 steps instead of 200" in reports[0].resumed
    assert "starts empty" not in reports[0].resumed
    assert [buffer.num_added for buffer in buffers] == [200, 300]
    if kind in ("prioritized", "rank"):
        assert [buffer.sampler.beta_samples for buffer in buffers] == [160, 260]
        assert buffers[1].num_samples == 261


# --- bad input -----------------------------------------------------------------------------------


class WithSpaces(toy_envs.ConstantReward):
    """`ConstantReward` with other spaces."""

    def __init__(self, *, obs=None, action=None):
        super().__init__()
        self.observation_space = obs or self.observation_space
        self.action_space = action or self.action_space


UNBOUNDED = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32))
IMAGES = spaces.Box(0, 255, (12, 12, 3), np.uint8)


@pytest.mark.parametrize(
    ("algorithm", "made_of", "message"),
    [
        (
            sac,
            {},
            r"continuous \(box\) action space is needed, got a discrete.*: use dqn, sac_disc",
        ),
        (
            td3,
            {},
            r"continuous \(box\) action space is needed, got a discrete.*: use dqn, sac_disc",
        ),
        (
            dqn,
            {"action": spaces.Box(-1, 1, (2,), np.float32)},
            r"one discrete action is needed, got a box.*use ppo",
        ),
        (sac, {"action": spaces.MultiDiscrete([2, 3])}, "got a multi_discrete one: use ppo"),
        (td3, {"action": spaces.MultiDiscrete([2, 3])}, "got a multi_discrete one: use ppo"),
        (dqn, {"action": spaces.MultiDiscrete([2, 3])}, r"got a multi_discrete space.*use ppo"),
        (sac, {"action": UNBOUNDED}, r"must be finite .* got \[-1.0, -inf\] to \[1.0, inf\]"),
        (td3, {"action": UNBOUNDED}, r"TransformAction\(env, .*, or use ppo"),
        (
            sac,
            {"obs": IMAGES, "action": spaces.Box(-1, 1, (2,), np.float32)},
            "these observations hold images: choose `network` 'perceptron'",
        ),
    ],
)
def test_unsupported_spaces_are_refused(tmp_path, algorithm, made_of, message):
    with pytest.raises(SpaceError, match=message):
        train(algorithm, tmp_path, lambda: WithSpaces(**made_of))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_starts": 200}, r"less than `total_timesteps`, or nothing is learned, got 200"),
        ({"learning_starts": 1.5}, "`learning_starts` must be an integer ≥ 0, got 1.5"),
        ({"learning_starts": -1}, "`learning_starts` must be an integer ≥ 0, got -1"),
        ({"buffer_size": 15}, r"must hold a batch, `batch_size` = 16, got 15: raise it"),
        ({"buffer_size": 15, "n_step": 3}, "`batch_size` = 16, got 15: raise it"),
        ({"buffer_size": 1.5e-6}, "`buffer_size` must be a positive integer, got 1.5e-06"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer, got 0"),
        ({"batch_size": None}, "`batch_size` must be given, got None"),
        ({"train_frequency": 0}, "`train_frequency` must be a positive integer, got 0"),
        ({"n_step": 0}, "`n_step` must be a positive integer, got 0"),
        ({"report_interval": 0}, "`report_interval` must be a positive integer, got 0"),
        ({"update_to_data": 0.0}, "`update_to_data` must be positive and finite, got 0.0"),
        ({"update_to_data": math.inf}, "`update_to_data` must be positive and finite, got inf"),
        ({"update_to_data": 1e6}, "`update_to_data` must be at most 10,000, got 1000000.0"),
        ({"replay": "priority"}, "`replay` must be 'uniform', 'proportional', 'prio.*'priority'"),
        (
            {"replay_beta": 0.5, "replay": "proportional"},
            "`replay_beta` .* is for `replay` 'prioritized' or 'rank', got 'proportional",
        ),
        ({"replay_shift": 1.0}, "`replay_shift` 1.0 is for `replay` 'proportional', got 'uniform"),
        (
            {"replay_replacement": True, "replay": "prioritized"},
            "is for `replay` 'uniform' or 'proportional', got 'prioritized",
        ),
        (
            {"replay_weight_from": "reward", "replay": "proportional"},
            "`replay_weight_from` must be 'episode_return', .*got 'reward'",
        ),
        (
            {"replay_alpha": -1.0, "replay": "rank"},
            "`replay_alpha` must be finite and not negative",
        ),
        ({"overlap": True}, "`overlap` needs a GPU and a barrier, got `device` 'cpu': set `dev"),
        (
            {"overlap": True, "device": "cuda", "schedule": "async", "workers": 1},
            "needs a GPU and a barrier, got `schedule` 'async': set",
        ),
        ({"save_replay": "no"}, "`save_replay` must be True or False, got 'no'"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ConfigError, match=message):
        dqn.Config(**{**SMALL, **options})


@each_algorithm
def test_every_algorithm_checks_the_shared_options(algorithm):
    with pytest.raises(ConfigError, match="less than `total_timesteps`, or nothing is learned"):
        algorithm.Config(**{**SMALL, "learning_starts": 200})
    with pytest.raises(ConfigError, match=r"`replay_shift` .* is for `replay` 'proportional'"):
        algorithm.Config(**{**SMALL, "replay_shift": 1.0})


def test_unknown_execution_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"`execution` must be 'auto', 'eager', .* got 'yes'"):
        train(dqn, tmp_path, execution="yes")
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_algorithm_is_not_resumed(tmp_path):
    train(sac, tmp_path, on_report=lambda report: report.timesteps >= 100)
    config = make_config(td3, tmp_path)
    with pytest.raises(ConfigError, match=r"is a run of sac, got td3: resume it with `hotloop"):
        td3.train(config, env=ENVS[td3], resume_from=tmp_path / "run")
    with pytest.raises(ConfigError, match="is a run of sac, got ppo"):
        ppo.train(ppo.Config(), env=ENVS[td3], resume_from=tmp_path / "run")


def test_another_network_is_not_resumed(tmp_path):
    config = make_config(sac, tmp_path)
    sac.train(config, env=ENVS[sac], on_report=lambda report: report.timesteps >= 100)
    wider = dataclasses.replace(config, hidden_sizes=(9,))
    with pytest.raises(ConfigError, match=r"hidden_sizes: \[8\] → \[9\]"):
        sac.train(wider, env=ENVS[sac], resume_from=tmp_path / "run")


# --- NaN and infinity ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "kind"), [(sac, "uniform"), (td3, "prioritized"), (dqn, "uniform")]
)
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_its_batch(tmp_path, algorithm, kind):
    """The 90th step's reward is 3e38. Neither its square nor its double is a float32."""
    # All updates of the round run before the policy acts with their result.
    options = {"replay": kind, "train_frequency": 10, "batch_size": 30}
    message = r"update (\d+) of iteration 2 gave NaN or infinity in .*loss.*is saved in (.*)$"
    with pytest.raises(NonFiniteError, match=message) as caught:
        train(algorithm, tmp_path, faulty_factory(ENVS[algorithm], 90, overflow), **options)
    run = RunDirectory.open(tmp_path / "run")
    assert run.load_policy()[2]["timesteps"] == 50
    assert all(np.isfinite(array).all() for array in weights_of(run.path).values())
    update, path = re.search(message, str(caught.value)).groups()
    assert 31 <= int(update) <= 50  # the buffer holds the 90th step from update 31 on
    batch = load_file(path)
    assert batch["obs"].shape == (30, *ENVS[algorithm].observation_space.shape)
    assert batch["reward"].max() == np.float32(3e38)


def test_overwritten_batch_is_not_saved(tmp_path):
    """The critics diverge, the policy is still finite, and the buffer wraps around."""
    options = {"buffer_size": 16, "policy_frequency": 1000, "learning_starts": 16}
    message = r"of iteration 2 gave NaN.*critic_loss.*; its batch was overwritten since"
    factory = faulty_factory(toy_envs.ReachTheTarget, 55, overflow)
    with pytest.raises(NonFiniteError, match=message):
        train(td3, tmp_path, factory, **options)
    assert not (tmp_path / "run" / "nonfinite_batch.safetensors").exists()


@pytest.mark.filterwarnings("ignore:.*numbers as large as 1e.20")
def test_large_observations_are_named_though_the_batch_was_overwritten(tmp_path):
    factory = lambda: gymnasium.wrappers.TransformObservation(  # noqa: E731
        toy_envs.ReachTheTarget(), lambda obs: obs * 0 + np.float32(1e20), None
    )
    message = r"scale the observations, which are as large as 1e\+20, .* was overwritten since"
    with pytest.raises(NonFiniteError, match=message):
        train(td3, tmp_path, factory, buffer_size=16, learning_starts=16, policy_frequency=1000)


@each_algorithm
def test_parameters_that_are_not_finite_are_never_published(tmp_path, monkeypatch, algorithm):
    """The last update of an iteration may produce values that no loss has used yet."""
    name = algorithm.algorithm.acting

    def spoil(learner, batch, td_error):
        if learner.num_updates == 61:  # with the 100th transition
            getattr(learner.state, name)[3] = float("inf")

    watch(monkeypatch, spoil)
    message = f"update 50 of iteration 2 gave NaN or infinity in {name}: lower"
    with pytest.raises(NonFiniteError, match=message):
        train(algorithm, tmp_path)
    run = RunDirectory.open(tmp_path / "run")
    assert run.load_policy()[2]["timesteps"] == 50
    assert all(np.isfinite(array).all() for array in weights_of(run.path).values())


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@each_algorithm
def test_a_policy_that_diverged_is_not_blamed_on_the_environment(tmp_path, algorithm):
    rates = ["learning_rate"]
    if algorithm is sac:
        rates = ["policy_learning_rate", "critic_learning_rate"]
    with pytest.raises(NonFiniteError, match=r"lower the learning rate"):
        train(algorithm, tmp_path, env_id=LONG[algorithm], **dict.fromkeys(rates, 1e38))


def test_an_environment_that_gives_nan_is_named(tmp_path):
    kwargs = {"how": "nan_obs", "at": 70}
    with pytest.raises(EnvironmentFailure, match="environment 0"):
        train(dqn, tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs)
    run = RunDirectory.open(tmp_path / "run")
    assert run.load_policy()[2]["timesteps"] == 50


def test_nothing_is_left_of_a_run_that_fails_before_its_first_iteration(tmp_path):
    kwargs = {"how": "raises", "at": 5}
    with pytest.raises(EnvironmentFailure, match="the simulator diverged"):
        train(dqn, tmp_path, toy_envs.Misbehaves, env_kwargs=kwargs)
    assert not os.path.exists(tmp_path / "run")


def test_training_works_under_no_grad(tmp_path):
    with torch.no_grad():
        assert train(sac, tmp_path).status == "finished"


def test_batches_go_to_a_gpu_through_pinned_memory(monkeypatch):
    """The device is torch's `meta`, so the uploads are checked on the host."""
    monkeypatch.setattr(transfer, "pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(transfer.DeviceEvent, "record", lambda self: None)
    puts = {}
    put = transfer.Uploads.put

    def record(self, name, target, array):
        put(self, name, target, array)
        puts[name] = target, array.copy()

    monkeypatch.setattr(transfer.Uploads, "put", record)
    envs = make_vec("CartPole-v1", 1)
    config = dqn.Config(buffer_size=100, batch_size=4, total_timesteps=100, learning_starts=10)
    replay, same = (
        Replay(config, envs, torch.device(device), EnvSpec("CartPole-v1"))
        for device in ("meta", "cpu")
    )
    rows = {
        "obs": np.random.default_rng(0).random((20, 4), np.float32),
        "action": np.arange(20) % 2,
        "reward": np.arange(20, dtype=np.float32),
        "next_obs": np.random.default_rng(1).random((20, 4), np.float32),
        "terminated": np.zeros(20, bool),
        "truncated": np.zeros(20, bool),
    }
    for each in (replay, same):
        each.buffer.extend(**rows)
    for _ in range(3):  # the first draw makes the tensors, the others fill them
        batches, index = replay.draw(2)
        expected, same_index = same.draw(2)
        np.testing.assert_array_equal(index, same_index)
    assert puts.keys() == {"obs", "action", "reward", "next_obs", "discount", "importance"}
    for name, (target, array) in puts.items():
        assert target.device.type == "meta"
        expected_rows = torch.cat([getattr(batch, name) for batch in expected])
        assert target.shape == expected_rows.shape
        np.testing.assert_array_equal(array, expected_rows.numpy(), name)
    assert all(x.device.type == "meta" for batch in batches for x in batch if x is not None)
    envs.close()


def test_buffer_size_is_checked_with_total_timesteps(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**25)
    envs = make_vec("CartPole-v1", 1)
    config = dqn.Config(buffer_size=10**7, total_timesteps=10**6, learning_starts=100)
    message = "^the 1,000,000 transitions of the replay buffer take at least .* MiB"
    with pytest.raises(ConfigError, match=message):
        Replay(config, envs, torch.device("cpu"), EnvSpec("CartPole-v1"))
    short = dataclasses.replace(config, total_timesteps=10**5)
    Replay(short, envs, torch.device("cpu"), EnvSpec("CartPole-v1"))
    envs.close()
