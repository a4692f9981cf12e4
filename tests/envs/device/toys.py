"""Device environments that count steps, so that tests can predict every value."""

from __future__ import annotations

import torch

from hotloop.envs.device.functional import TensorVectorEnv
from hotloop.envs.device.protocol import DeviceStep
from hotloop.envs.device.specs import box_actions, box_observations


class Counting:
    """Observe (steps of this episode, its first value) and terminate after `length` steps.

    The reward is the action, clipped to [−1, 1].
    """

    num_uniform = 1
    obs_spec = box_observations(2)
    action_spec = box_actions(-1.0, 1.0, (1,))

    def __init__(self, length=3, max_episode_steps=None):
        self.length, self.max_episode_steps = length, max_episode_steps

    def initial(self, uniform):
        return {"count": torch.zeros_like(uniform[:, 0]), "first": uniform[:, 0]}

    def observation(self, state):
        return torch.stack([state["count"], state["first"]], -1)

    def step(self, state, action):
        count = state["count"] + 1
        return {"count": count, "first": state["first"]}, action[:, 0], count >= self.length


def counting(num_envs, device, length=3, max_episode_steps=None):
    """Return counting environments on the device."""
    return TensorVectorEnv(Counting(length, max_episode_steps), num_envs, device)


class Stateful:
    """A version of `Counting` that keeps its state internally."""

    def __init__(self, num_envs, device, length=3, tells_state=True):
        self._envs = counting(num_envs, device, length)
        self.num_envs, self.device, self._tells_state = num_envs, device, tells_state
        self.obs_spec, self.action_spec = self._envs.obs_spec, self._envs.action_spec

    def reset(self, seed):
        return self._envs.reset(seed)

    def step(self, action):
        return self._envs.step(action)

    def state(self):
        return self._envs.state() if self._tells_state else None

    def load(self, state):
        self._envs.load(state)

    def close(self):
        pass


def stateful(num_envs, device, **kwargs):
    """Return device environments that keep their state internally."""
    return Stateful(num_envs, device, **kwargs)


def elsewhere(num_envs, device):
    """Return environments on another device than the requested one."""
    return Stateful(num_envs, torch.device("meta"))


class Wrong(Stateful):
    """A version whose reward has another dtype."""

    def step(self, action):
        step = super().step(action)
        return DeviceStep(**{**step._asdict(), "reward": step.reward.double()})


def wrong(num_envs, device):
    """Return environments that violate the protocol."""
    return Wrong(num_envs, device)


class Broken(Stateful):
    """A version that observes NaN in its third step."""

    def step(self, action):
        step = super().step(action)
        self.count = getattr(self, "count", 0) + 1
        if self.count == 3:
            step.next_obs[1, 0] = torch.nan
        return step


def broken(num_envs, device):
    """Return environments that observe NaN."""
    return Broken(num_envs, device)


def not_environments(num_envs, device):
    """Return something else than environments."""
    return [num_envs, device]
