"""Environments that reuse their observation buffer, with and without correct final observations."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from hotloop.envs import EnvSpec, make_vec

LENGTH = 3
random_start = np.random.default_rng(0).random


class ReusedBuffer(gymnasium.Env):
    """Return the same array at every step. Episodes count from a random start."""

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


class SharedBufferVector(VectorEnv):
    """Reset within the step and observe (start, steps) as views of one buffer.

    Args:
        is_right: whether the final observation is copied before the reset.
        starts: a function that returns the first value of an episode.
        step: the increment of the second value in each step.
        ends: "terminated" or "truncated".
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(
        self,
        is_right: bool = False,
        starts=random_start,
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
        is_done = self.steps >= self.length
        infos = {}
        if is_done.any():
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(is_done):
                infos["final_obs"][i] = self.obs[i].copy() if self.is_right else self.obs[i]
                self.begin(i)
        no_flags = np.zeros(self.num_envs, np.bool_)
        flags = (is_done, no_flags) if self.ends == "terminated" else (no_flags, is_done)
        return self.obs, np.ones(self.num_envs), *flags, infos


def play(envs, num_steps=60):
    """Step the environments and return the final observations of all episodes and the warnings."""
    finals = []
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        envs.reset()
        for _ in range(num_steps):
            step = envs.step(np.zeros(envs.num_envs, np.int64))
            finals += step.next_obs[step.terminated | step.truncated].tolist()
        envs.reset()
        envs.step(np.zeros(envs.num_envs, np.int64))
    envs.close()
    runtime_warnings = [
        warning for warning in records if issubclass(warning.category, RuntimeWarning)
    ]
    return finals, runtime_warnings


def test_single_environments_may_reuse_their_buffer():
    finals, caught = play(make_vec(EnvSpec(ReusedBuffer, seed=3), 2))
    assert len(finals) == 40
    assert {steps for _, steps in finals} == {LENGTH}
    assert not caught


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_next_step_and_disabled_modes_may_reuse_their_buffer(mode):
    envs = make_vec(lambda: SyncVectorEnv([ReusedBuffer] * 2, autoreset_mode=mode, copy=False), 2)
    finals, caught = play(envs)
    assert {steps for _, steps in finals} == {LENGTH}
    assert not caught


@pytest.mark.parametrize("copy", [True, False])
def test_same_step_mode_with_a_reused_buffer_warns(copy):
    mode = AutoresetMode.SAME_STEP
    makers = [ReusedBuffer] * 2
    envs = make_vec(lambda: SyncVectorEnv(makers, autoreset_mode=mode, copy=copy), 2)
    finals, caught = play(envs)
    assert {steps for _, steps in finals} == {0}  # written by the reset
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "`final_obs` must be the last observation of the episode that ended" in message
    assert "Return `obs.copy()`" in message
    assert "`infos['final_obs'][i] = obs[i].copy()` before the reset" in message


def test_copied_observations_are_right():
    mode = AutoresetMode.SAME_STEP
    makers = [lambda: ReusedBuffer(is_copied=True)] * 2
    finals, caught = play(make_vec(lambda: SyncVectorEnv(makers, autoreset_mode=mode), 2))
    assert {steps for _, steps in finals} == {LENGTH}
    assert not caught


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("starts", [random_start, lambda: 0.5])
def test_vector_environment_with_overwritten_final_obs_warns(num_envs, starts):
    _, caught = play(make_vec(lambda: SharedBufferVector(num_envs=num_envs, starts=starts)))
    assert len(caught) == 1
    assert "<lambda>: `final_obs` must be" in str(caught[0].message)


@pytest.mark.parametrize(("num_steps", "has_warning"), [(9 * LENGTH, False), (10 * LENGTH, True)])
def test_warning_needs_ten_truncated_episodes(num_steps, has_warning):
    _, caught = play(make_vec(lambda: SharedBufferVector(num_envs=1)), num_steps)
    assert len(caught) == has_warning


@pytest.mark.parametrize(
    "settings",
    [
        {"is_right": True},
        {"is_right": True, "starts": lambda: 0.5},
        {"step": 0.0, "starts": lambda: 0.5},  # observations never change
        {"ends": "terminated"},  # no bootstrap from the final observation
        {"length": 1, "starts": lambda: 0.5},  # no steps between the ends
    ],
)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_possibly_right_final_obs_do_not_warn(settings, num_envs):
    _, caught = play(make_vec(lambda: SharedBufferVector(num_envs=num_envs, **settings)))
    assert not caught


def test_one_right_final_obs_ends_the_check():
    envs = SharedBufferVector(num_envs=1)
    adapter = make_vec(lambda: envs)
    adapter.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(60):
            envs.is_right = step == 5
            adapter.step(np.zeros(1, np.int64))
    assert adapter._final_check is None
