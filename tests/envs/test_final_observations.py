"""Buffers that environments write to again: what is read in time, and what no adapter can mend."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from hotloop.envs import make_vec

LENGTH = 3
drawn = np.random.default_rng(0).random


class InPlace(gymnasium.Env):
    """Gives one array again and again; episodes count from a start that is drawn."""

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, is_copied: bool = False) -> None:
        self.obs = np.zeros(2, np.float32)
        self.is_copied = is_copied

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs[:] = self.np_random.random(), 0
        return self.obs, {}

    def step(self, action):
        self.obs[1] += 1
        is_last = self.obs[1] == LENGTH
        return self.obs.copy() if self.is_copied else self.obs, 1.0, False, is_last, {}


class OwnVector(VectorEnv):
    """Resets within the step; observes (start, steps) in one buffer, of which all are views.

    Args:
        is_right: the final observation is copied before the reset.
        starts: gives the first number of an episode.
        step: that is added to the second in each step.
        ends: an episode is terminated or truncated.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(
        self,
        is_right: bool = False,
        starts=drawn,
        step: float = 1.0,
        ends: str = "truncated",
        num_envs: int = 2,
        length: int = LENGTH,
    ) -> None:
        self.num_envs, self.length = num_envs, length
        self.is_right, self.starts, self.size, self.ends = is_right, starts, step, ends
        self.obs = np.zeros((num_envs, 2), np.float32)
        self.steps = np.zeros(num_envs, np.int64)

    def reset(self, *, seed=None, options=None):
        for i in range(self.num_envs):
            self.begin(i)
        return self.obs, {}

    def begin(self, i):
        self.obs[i] = self.starts(), 0
        self.steps[i] = i % self.length

    def step(self, actions):
        self.steps += 1
        self.obs[:, 1] += self.size
        ended = self.steps >= self.length
        infos = {}
        if ended.any():
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended):
                infos["final_obs"][i] = self.obs[i].copy() if self.is_right else self.obs[i]
                self.begin(i)
        nothing = np.zeros(self.num_envs, np.bool_)
        flags = (ended, nothing) if self.ends == "terminated" else (nothing, ended)
        return self.obs, np.ones(self.num_envs), *flags, infos


def play(envs, num_steps=60):
    """Step, and return the final observations of all episodes, and the warnings."""
    finals = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        envs.reset()
        for _ in range(num_steps):
            step = envs.step(np.zeros(envs.num_envs, np.int64))
            finals += step.next_obs[step.terminated | step.truncated].tolist()
        envs.reset()
        envs.step(np.zeros(envs.num_envs, np.int64))
    envs.close()
    told = [one for one in caught if issubclass(one.category, RuntimeWarning)]
    return finals, told


def test_one_buffer_is_read_in_time_by_our_own_loop():
    finals, told = play(make_vec(InPlace, 2, seed=3))
    assert len(finals) == 40
    assert {steps for _, steps in finals} == {LENGTH}
    assert not told


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_one_buffer_is_read_in_time_from_other_modes(mode):
    envs = make_vec(lambda: SyncVectorEnv([InPlace] * 2, autoreset_mode=mode, copy=False), 2)
    finals, told = play(envs)
    assert {steps for _, steps in finals} == {LENGTH}
    assert not told


@pytest.mark.parametrize("copy", [True, False])
def test_gymnasiums_same_step_mode_with_one_buffer_is_told_of(copy):
    mode = AutoresetMode.SAME_STEP
    makers = [InPlace] * 2
    envs = make_vec(lambda: SyncVectorEnv(makers, autoreset_mode=mode, copy=copy), 2)
    finals, told = play(envs)
    assert {steps for _, steps in finals} == {0}  # what the reset wrote
    assert len(told) == 1
    message = str(told[0].message)
    assert "`final_obs` must be the last observation of the episode that ended" in message
    assert "Return `obs.copy()`" in message
    assert "`infos['final_obs'][i] = obs[i].copy()` before the reset" in message


def test_a_copy_mends_it():
    mode = AutoresetMode.SAME_STEP
    makers = [lambda: InPlace(is_copied=True)] * 2
    finals, told = play(make_vec(lambda: SyncVectorEnv(makers, autoreset_mode=mode), 2))
    assert {steps for _, steps in finals} == {LENGTH}
    assert not told


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("starts", [drawn, lambda: 0.5])
def test_a_vector_environment_of_ones_own_is_told_of(num_envs, starts):
    _, told = play(make_vec(lambda: OwnVector(num_envs=num_envs, starts=starts)))
    assert len(told) == 1
    assert "<lambda>: `final_obs` must be" in str(told[0].message)


@pytest.mark.parametrize(("num_steps", "is_told"), [(9 * LENGTH, False), (10 * LENGTH, True)])
def test_ten_episodes_must_have_been_truncated(num_steps, is_told):
    _, told = play(make_vec(lambda: OwnVector(num_envs=1)), num_steps)
    assert len(told) == is_told


@pytest.mark.parametrize(
    "settings",
    [
        {"is_right": True},
        {"is_right": True, "starts": lambda: 0.5},
        {"step": 0.0, "starts": lambda: 0.5},  # nothing ever changes
        {"ends": "terminated"},  # what follows is not learned from
        {"length": 1, "starts": lambda: 0.5},  # nothing lies between the ends
    ],
)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_what_may_be_right_is_not_told_of(settings, num_envs):
    _, told = play(make_vec(lambda: OwnVector(num_envs=num_envs, **settings)))
    assert not told


def test_one_end_that_is_right_is_enough():
    envs = OwnVector(num_envs=1)
    adapter = make_vec(lambda: envs)
    adapter.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(60):
            envs.is_right = step == 5
            adapter.step(np.zeros(1, np.int64))
    assert adapter._finals is None
