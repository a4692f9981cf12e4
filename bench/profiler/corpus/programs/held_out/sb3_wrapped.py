# type: ignore
"""A2C on a falling ball seen as stacked pixels, with the wrappers that the task needs."""

import argparse
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

#: length --timesteps 24000
#: imports

torch.set_num_threads(1)

#: globals


class Falling(gym.Env):
    """A ball falls; the paddle below should catch it. Observations are 24×24 bytes."""

    observation_space = gym.spaces.Box(0, 255, (24, 24), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball, self.paddle, self.t = int(self.np_random.integers(24)), 12, 0
        #: reset count=self.t
        return self._frame(), {}

    def _frame(self):
        frame = np.zeros((24, 24), np.uint8)
        frame[self.t, self.ball] = 255
        frame[23, max(0, self.paddle - 2) : self.paddle + 3] = 128
        return frame

    def step(self, action):
        self.paddle = min(23, max(0, self.paddle + 2 * (int(action) - 1)))
        self.t += 1
        end = self.t == 23
        reward = float(abs(self.ball - self.paddle) <= 2) if end else 0.0
        obs = self._frame()
        #: env obs=obs reward=reward count=self.t
        return obs, reward, end, False, {}


class LastFrames(gym.Wrapper):
    """The last two frames as channels: the ball's movement is visible."""

    def __init__(self, env, size=2):
        super().__init__(env)
        self.frames = deque(maxlen=size)
        self.observation_space = gym.spaces.Box(0, 255, (size, 24, 24), np.uint8)

    def reset(self, **options):
        frame, info = self.env.reset(**options)
        self.frames.extend([frame] * self.frames.maxlen)
        return np.stack(self.frames), info

    def step(self, action):
        frame, *rest = self.env.step(action)
        self.frames.append(frame)
        return np.stack(self.frames), *rest


class Encoder(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, 64)
        self.layers = nn.Sequential(
            nn.Conv2d(space.shape[0], 16, 4, 2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 5 * 5, 64),
            nn.ReLU(),
        )

    def forward(self, obs):
        return self.layers(obs)


class Watch(BaseCallback):
    def __init__(self):
        super().__init__()
        self.rollouts = 0

    def _on_rollout_end(self):
        self.rollouts += 1
        #: update count=self.rollouts net=self.model.policy

    def _on_step(self):
        #: step count=self.n_calls obs=self.locals['new_obs'][0] reward=float(self.locals['rewards'][0]) net=self.model.policy
        return True


def make_env():
    env = Falling()
    #: wrap env=env copies=6
    return Monitor(LastFrames(env))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=24000)
    timesteps = parser.parse_args().timesteps
    model = A2C(
        "CnnPolicy",
        DummyVecEnv([make_env] * 6),
        n_steps=16,
        seed=3,
        device="cpu",
        policy_kwargs={"features_extractor_class": Encoder},
    )
    checkpoints = CheckpointCallback(save_freq=1000, save_path="models")
    #: setup net=model.policy
    start = time.perf_counter()
    model.learn(timesteps, callback=[Watch(), checkpoints])
    rewards = [episode["r"] for episode in model.ep_info_buffer]
    print(f"mean return {np.mean(rewards):.2f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
