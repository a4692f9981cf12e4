"""Environments with values in closed form, for tests of learning."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


class ConstantReward(gymnasium.Env):
    """Reward 1 at every step; episodes are truncated or terminated after `length` steps.

    With truncation the value is 1 / (1 − γ) everywhere, whatever `length` is.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 10, ending: str = "truncated") -> None:
        self.length = length
        self.ending = ending

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        is_over = self.count == self.length
        obs = np.full(2, self.count / self.length, np.float32)
        return (
            obs,
            1.0,
            is_over and self.ending == "terminated",
            is_over and self.ending != ("terminated"),
            {},
        )


class ChooseTheSign(gymnasium.Env):
    """One-step episodes: the reward is 1 for the action of the observation's sign, else 0."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign = 1.0 if self.np_random.random() < 0.5 else -1.0
        return np.array([self.sign], np.float32), {}

    def step(self, action):
        reward = float(action == (self.sign > 0))
        return np.array([self.sign], np.float32), reward, True, False, {}


class ReachTheTarget(gymnasium.Env):
    """One step, continuous actions: the reward is −(action − 0.5 · observation)², summed."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.target = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.target, {}

    def step(self, action):
        reward = -float(np.square(action - 0.5 * self.target).sum())
        return self.target, reward, True, False, {}


class Wanders(gymnasium.Env):
    """Episodes of 3 … 20 steps in which the observation moves by the action."""

    observation_space = spaces.Box(-40.0, 40.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        self.num_left = int(self.np_random.integers(3, 21))
        return self.position.copy(), {}

    def step(self, action):
        self.position += action
        self.num_left -= 1
        is_over, is_right = self.num_left == 0, self.position[0] > 0
        return self.position.copy(), 0.0, is_over and is_right, is_over and not is_right, {}


class MultiSign(ChooseTheSign):
    """`ChooseTheSign` with two components: the second is right when it is 2 of 0, 1, 2."""

    action_space = spaces.MultiDiscrete([2, 3])

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action[0])
        return obs, reward + float(action[1] == 2), terminated, truncated, info


class MixedSign(ChooseTheSign):
    """`ChooseTheSign` with parts: the gear is right when it is 2, the throttle at 0.5."""

    action_space = spaces.Dict(
        throttle=spaces.Box(-1.0, 1.0, (), np.float64),
        sign=spaces.Discrete(2),
        gear=spaces.Discrete(3, start=1),
    )

    def step(self, action):
        assert self.action_space.contains(action)
        obs, reward, terminated, truncated, info = super().step(action["sign"])
        reward += float(action["gear"] == 2) - 0.25 * (float(action["throttle"]) - 0.5) ** 2
        return obs, reward, terminated, truncated, info


class Misbehaves(ConstantReward):
    """`ConstantReward` that goes wrong at step `at`, counted from the first episode's start."""

    def __init__(self, how: str = "raises", at: int = 5, length: int = 10) -> None:
        super().__init__(length)
        self.how = how
        self.at = at
        self.total = 0

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.total += 1
        if self.total == self.at:
            if self.how == "raises":
                raise RuntimeError("the simulator diverged")
            if self.how == "interrupt":
                raise KeyboardInterrupt
            if self.how == "nan_obs":
                obs[1] = np.nan
            if self.how == "nan_reward":
                reward = float("nan")
            if self.how == "shape":
                obs = np.zeros(3, np.float32)
            if self.how == "huge_reward":
                reward = 1e38
        return obs, reward, terminated, truncated, info


class NeverResets(ConstantReward):
    """An environment whose reset always raises."""

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no reset")


class Text(ConstantReward):
    """Text observations, which no policy supports."""

    observation_space = spaces.Text(5)


def next_step_signs(num_envs):
    """`ChooseTheSign` in a vector environment that spends a call on each reset."""
    envs = gymnasium.vector.SyncVectorEnv([ChooseTheSign] * num_envs)
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)


class Allowed(gymnasium.Env):
    """Two choices of each component are allowed; others end the episode with a reward of −1.

    The observation holds the mask, and a sign that selects the lower or the upper choice, which
    gives 1. Half of the episodes are truncated after `length` steps, and the others terminate with
    a mask of zeros.
    """

    def __init__(self, choices=(12,), length=5, how="well"):
        self.choices, self.length, self.how = tuple(choices), length, how
        self.action_space = spaces.MultiDiscrete(choices)
        if len(choices) == 1:
            self.action_space = spaces.Discrete(choices[0])
        self.observation_space = spaces.Box(-1.0, 1.0, (sum(choices) + 1,), np.float32)
        self.num_episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.is_truncated = bool(self.np_random.random() < 0.5)
        return self.observe(), self.info()

    def observe(self):
        self.masks = []
        for count in self.choices:
            mask = np.zeros(count, np.int8)
            mask[self.np_random.permutation(count)[:2]] = 1
            self.masks.append(mask)
        self.sign = 1.0 if self.np_random.random() < 0.5 else -1.0
        return np.concatenate([*self.masks, [self.sign]]).astype(np.float32)

    def info(self, *, is_over=False):
        mask = np.concatenate(self.masks)
        if self.how == "none":
            return {}
        if self.how == "short":
            mask = mask[1:]
        if self.how == "twos":
            mask = 2 * mask
        if is_over or (self.how == "zeros" and self.count == 2):
            mask = 0 * mask
        return {"action_mask": mask}

    def step(self, action):
        self.count += 1
        rewards = []
        for mask, chosen in zip(self.masks, np.atleast_1d(action), strict=True):
            allowed = np.flatnonzero(mask)
            if chosen not in allowed:
                return self.observe(), -1.0, True, False, self.info(is_over=True)
            rewards.append(float(chosen == allowed[int(self.sign > 0)]))
        is_over = self.count == self.length
        terminated, truncated = is_over and not self.is_truncated, is_over and self.is_truncated
        obs = self.observe()
        info = self.info(is_over=terminated)
        return obs, float(np.mean(rewards)), terminated, truncated, info


class Forbidding(gymnasium.Env):
    """Two of five actions are allowed, and all others raise.

    Args:
        kind: `flat`, `bytes`, `image`, `dict`, or `packed`, a dict with an image.
        source: where the masks are, see `hotloop.envs.masks`.
        bad: a mask for step 3 of each episode instead of the right one.
    """

    parts = {  # noqa: RUF012
        "flat": spaces.Box(0.0, 1.0, (3,), np.float32),
        "bytes": spaces.Box(0, 3, (3,), np.uint8),
        "image": spaces.Box(0, 255, (12, 12, 1), np.uint8),
    }
    action_space = spaces.Discrete(5, start=2)

    def __init__(self, kind="flat", source="info", bad=None):
        self.source, self.bad = source, bad
        names = {"dict": ("flat", "bytes"), "packed": ("flat", "image")}.get(kind)
        self.observation_space = self.parts[kind] if names is None else None
        if names is not None:
            self.observation_space = spaces.Dict({name: self.parts[name] for name in names})
        if source == "observation":
            inner = self.observation_space if names else {"observation": self.observation_space}
            mask_space = spaces.MultiBinary(5)
            self.observation_space = spaces.Dict({**inner, "action_mask": mask_space})
        if source == "method":
            self.action_masks = lambda: self.mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe()

    def observe(self):
        self.mask = np.isin(np.arange(5), self.np_random.permutation(5)[:2]).astype(np.int8)
        if self.bad is not None and self.count == 3:
            self.mask = np.array(self.bad)
        space = self.observation_space
        space.seed(int(self.np_random.integers(2**31)))
        obs = space.sample()
        if self.source == "observation":
            obs["action_mask"] = self.mask
        return obs, {"action_mask": self.mask} if self.source == "info" else {}

    def step(self, action):
        assert self.mask[action - 2] == 1, "a forbidden action"
        self.count += 1
        obs, info = self.observe()
        return obs, float(action), self.count == 7, self.count > 4 and action == 3, info


def wrapped_forbidding(**options):
    """Return `Forbidding` in two wrappers."""
    return gymnasium.wrappers.TimeLimit(gymnasium.Wrapper(Forbidding(**options)), 6)


class SlowToMake(ConstantReward):
    """An environment whose constructor takes 2 s."""

    def __init__(self):
        super().__init__()
        time.sleep(2)


class FarAway(ChooseTheSign):
    """`ChooseTheSign` with observations of 1000 ± 0.01, which need scaling."""

    observation_space = spaces.Box(-2000.0, 2000.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        return (1000.0 + 0.01 * obs).astype(np.float32), info


class RandomOffset(ConstantReward):
    """Observations with a new random offset in each episode."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.offset = np.float32(np.random.default_rng().random() / 2)
        return obs + self.offset, info

    def step(self, action):
        obs, *result = super().step(action)
        return (obs + self.offset, *result)


class Swallows(ConstantReward):
    """Steps swallow every exception, including interrupts."""

    def step(self, action):
        with contextlib.suppress(BaseException):
            time.sleep(0.001)
        return super().step(action)


class Levels(ConstantReward):
    """Episodes of five steps. The observation is a tenth of the level at the reset."""

    def __init__(self):
        super().__init__(5)
        self.level = 0
        self.local_values = [lambda: 0]  # no pickle holds it

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.shown = obs + np.float32(self.level / 10)
        return self.shown, info

    def step(self, action):
        return self.shown, *super().step(action)[1:]

    def raise_level(self, by, *, limit=9):
        if by < 0:
            raise ValueError("levels only rise")
        self.level = min(limit, self.level + by)
        return self.level

    def die_once(self, path):
        if not os.path.exists(path):
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.level = 7


class MaskedDict(gymnasium.ObservationWrapper):
    """A dict of the masked environment's observation and a category."""

    def __init__(self, choices=(6,)):
        super().__init__(Allowed(choices))
        parts = {"is": self.env.observation_space, "kind": spaces.Discrete(3)}
        self.observation_space = spaces.Dict(parts)

    def observation(self, observation):
        return {"is": observation, "kind": int(self.env.count % 3)}
