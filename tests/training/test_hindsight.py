"""Hindsight: relabeled batches compared with whole transitions, and a task that needs it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hotloop.algorithms import sac
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError
from hotloop.training.hindsight import Hindsight
from hotloop.training.replay import Replay
from hotloop.types import Fragment
from tests.goal_envs import OneByOne, Reach

NUM_ENVS = 3


class RandomPlay:
    """Fragments of random play, and all their transitions in the order of the buffer."""

    def __init__(self, make=Reach, **options):
        self.envs = make_vec(EnvSpec(make, seed=1), NUM_ENVS)
        self.spec = self.envs.obs_spec
        config = SimpleNamespace(
            **{
                "hindsight": "future",
                "hindsight_share": 0.5,
                "buffer_size": 1000,
                "seed": 4,
                "env_kwargs": {},
                "clip_reward": None,
                **options,
            }
        )
        self.hindsight = Hindsight(config, EnvSpec(make), self.spec, NUM_ENVS)
        self.rng = np.random.default_rng(2)
        self.obs = self.envs.reset()
        self.rows, self.episode = [], [0] * NUM_ENVS

    def play(self, num_steps):
        fragment = Fragment.allocate(
            num_steps,
            NUM_ENVS,
            obs_shape=self.spec.shape,
            obs_dtype="float32",
            action_shape=(2,),
            action_dtype="float32",
        )
        first = len(self.rows)
        for t in range(num_steps):
            step = self.envs.step(self.rng.uniform(-1, 1, (NUM_ENVS, 2)).astype(np.float32))
            fragment.obs[t], fragment.next_obs[t] = self.obs, step.next_obs
            fragment.terminated[t], fragment.truncated[t] = step.terminated, step.truncated
            # A few rows are no transitions: the environment failed, and its episode ended before.
            fragment.valid[t] = (self.rng.random(NUM_ENVS) < 0.9) | step.truncated
            for env in range(NUM_ENVS):
                if fragment.valid[t, env]:
                    row = self.obs[env].copy(), step.next_obs[env].copy(), step.reward[env]
                    self.rows.append((env, self.episode[env], *row))
                self.episode[env] += int(step.truncated[env] or not fragment.valid[t, env])
            self.obs = step.obs.copy()
        self.hindsight.add(fragment, first)

    def draw(self, index):
        names = ("env", "episode", "obs", "next_obs", "reward")
        columns = zip(*(self.rows[i] for i in index), strict=True)
        batch = SimpleNamespace(index=np.array(index))
        for name, column in zip(names, columns, strict=True):
            setattr(batch, name, np.array(column))
        return batch


def goal(spec, obs, kind):
    return spec.unflatten(obs)[f"{kind}_goal"]


@pytest.mark.parametrize("make", [Reach, OneByOne])
@pytest.mark.parametrize("strategy", ["future", "final"])
def test_relabeled_goals_are_later_in_the_same_episode(strategy, make):
    played = RandomPlay(make, hindsight=strategy)
    for _ in range(5):
        played.play(17)
    spec, env = played.spec, Reach()
    index = np.tile(np.arange(len(played.rows)), 20)
    before, after = played.draw(index), played.draw(index)
    played.hindsight.relabel(after)
    old, new = goal(spec, before.obs, "desired"), goal(spec, after.obs, "desired")
    np.testing.assert_array_equal(new, goal(spec, after.next_obs, "desired"))
    changed = (old != new).any(1)
    assert 0.45 < changed.mean() < 0.55
    np.testing.assert_array_equal(after.reward[~changed], before.reward[~changed])
    for name in ("observation", "achieved_goal"):
        for field in ("obs", "next_obs"):
            old_part, new_part = (
                spec.unflatten(getattr(batch, field))[name] for batch in (before, after)
            )
            np.testing.assert_array_equal(old_part, new_part)

    # Search all rows for the goals that were achieved later.
    first_matches = set()
    for i in np.flatnonzero(changed):
        number = index[i]
        later = [
            k
            for k in range(number, len(played.rows))
            if played.rows[k][:2] == played.rows[number][:2]
        ]
        if strategy == "final":
            later = later[-1:]
        achieved = np.array([goal(spec, played.rows[k][3], "achieved") for k in later])
        matches = (achieved == new[i]).all(1)
        assert matches.any()
        first_matches.add(int(matches.argmax()))
        expected = env.compute_reward(goal(spec, after.next_obs[i], "achieved"), new[i], {})
        assert after.reward[i] == expected
    assert len(first_matches) > (10 if strategy == "future" else 0)


def test_rewards_of_relabeled_goals_are_clipped():
    played = RandomPlay(clip_reward=0.25, hindsight_share=1.0)
    played.play(30)
    batch = played.draw(np.arange(len(played.rows)))
    played.hindsight.relabel(batch)
    assert set(batch.reward.tolist()) == {-0.25, 0.0}


class ReachAndEnd(Reach):
    """`Reach` whose episodes terminate at the goal."""

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self.compute_reward(achieved_goal, desired_goal, info) == 0.0


def make_replay(**options):
    """Return a replay buffer of one environment, `ReachAndEnd`, and its observation spec."""
    options = {"hindsight": "final", "hindsight_share": 1.0, "gamma": 0.5, **options}
    envs = make_vec(EnvSpec(ReachAndEnd, seed=0), 1)
    config = sac.Config(**options, batch_size=64, buffer_size=100)
    return Replay(config, envs, torch.device("cpu"), EnvSpec(ReachAndEnd)), envs.obs_spec


def store_episode(replay, spec):
    """Store an episode of four steps, whose places differ."""
    fragment = Fragment.allocate(
        4, 1, obs_shape=spec.shape, obs_dtype="float32", action_shape=(2,), action_dtype="float32"
    )
    places = np.linspace(-1.0, 1.0, 4, dtype=np.float32)[:, None, None]
    spec.unflatten(fragment.next_obs)["achieved_goal"][...] = places
    fragment.truncated[-1] = True
    replay.store(fragment)


def test_discount_is_zero_where_a_relabeled_goal_is_reached():
    """The new goal is the place of the last step, so this step alone terminates."""
    replay, spec = make_replay()
    store_episode(replay, spec)
    (batch,), index = replay.draw(1)
    assert set(index.tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(batch.discount, np.where(index == 3, 0.0, 0.5))


@pytest.mark.parametrize("is_saved", [True, False])
def test_restored_transitions_have_their_goals(tmp_path, is_saved):
    """A resumed run has the goals of a checkpoint, even if it writes no such checkpoint itself."""
    replay, spec = make_replay(save_replay=True)
    store_episode(replay, spec)
    replay.save(tmp_path / "replay")
    other, _ = make_replay(save_replay=is_saved)
    other.restore(tmp_path / "replay")
    other.load(replay.to_arrays())
    batches = [x.draw(1)[0][0] for x in (replay, other)]
    np.testing.assert_array_equal(batches[0].obs, batches[1].obs)
    assert (spec.unflatten(batches[1].obs)["desired_goal"] == 1.0).all()


def test_the_environment_that_judges_goals_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(ReachAndEnd, "close", lambda env: closed.append(env))
    replay, _ = make_replay()
    before = len(closed)
    replay.close()
    assert len(closed) == before + 1


def test_old_goals_are_dropped_and_unknown_rows_stay_unchanged():
    played = RandomPlay(buffer_size=40, hindsight_share=1.0)
    for _ in range(8):
        played.play(11)
    first = len(played.rows) - 40
    index = np.arange(first, len(played.rows))
    before, after = played.draw(index), played.draw(index)
    played.hindsight.relabel(after)
    assert (before.obs != after.obs).any(1).all()
    # The buffer holds rows that hindsight has not stored.
    arrays = played.hindsight.to_arrays()
    other = RandomPlay(buffer_size=40, hindsight_share=1.0)
    other.hindsight.load(arrays)
    same = played.draw(index)
    other.hindsight._num_batches -= 0
    played.hindsight.relabel(after := played.draw(index))
    other.hindsight.relabel(same)
    np.testing.assert_array_equal(same.obs, after.obs)
    other.rows = list(played.rows) + [played.rows[-1]] * 7
    other.play(2)
    known = other.draw(np.arange(len(other.rows) - 40, len(other.rows)))
    old_obs = known.obs.copy()
    other.hindsight.relabel(known)
    gap = (known.index >= len(played.rows)) & (known.index < len(played.rows) + 7)
    np.testing.assert_array_equal((known.obs != old_obs).any(1), ~gap)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_step": 3}, "`hindsight` needs `n_step` 1"),
        ({"schedule": "async", "workers": 1}, "`hindsight` needs `schedule` 'barrier'"),
        ({"hindsight": "past"}, "`hindsight` must be"),
        ({"hindsight_share": 1.5}, "`hindsight_share` must"),
    ],
)
def test_conflicting_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        sac.Config(env_id="tests.goal_envs:Reach", **{"hindsight": "future", **options})


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pendulum-v1", "dict observations with 'achieved_goal' .* got no dict"),
        ("tests.training.test_hindsight:Unrewarding", "and Unrewarding has none: add it"),
    ],
)
def test_environments_without_goals_are_refused(tmp_path, env_id, message):
    config = sac.Config(
        env_id=env_id,
        total_timesteps=300,
        hindsight="future",
        run_dir=str(tmp_path / "run"),
        learning_starts=100,
        batch_size=32,
        execution="eager",
    )
    with pytest.raises(ConfigError, match=message):
        sac.train(config)


class Unrewarding(Reach):
    compute_reward = None

    def step(self, action):
        return self.observe(), 0.0, False, True, {}


def short_config(tmp_path, name, **options):
    return sac.Config(
        **{
            "env_id": "tests.goal_envs:Reach",
            "total_timesteps": 1_200,
            "learning_starts": 200,
            "batch_size": 64,
            "hidden_sizes": (32, 32),
            "hindsight": "future",
            "checkpoint_interval": 600,
            "save_replay": True,
            "run_dir": str(tmp_path / name),
            "execution": "eager",
            "torch_threads": 1,
            **options,
        }
    )


@pytest.mark.slow
def test_a_goal_is_reached_with_hindsight_and_not_without(tmp_path):
    def last_return(name, **options):
        config = short_config(
            tmp_path,
            name,
            total_timesteps=8_000,
            env_kwargs={"near": 0.05, "num_steps": 25},
            policy_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            gamma=0.95,
            save_replay=False,
            checkpoint_interval=8_000,
            **options,
        )
        return sac.train(config).mean_return

    assert last_return("with") > last_return("without", hindsight=None) + 5
