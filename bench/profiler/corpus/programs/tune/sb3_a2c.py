# type: ignore
"""A2C on LunarLander-like hovering: a custom environment, a shaping wrapper, a callback."""

import argparse
import math
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

#: length --steps 42000
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=42000)
parser.add_argument("--num-envs", type=int, default=8)
args = parser.parse_args()
torch.set_num_threads(1)

#: globals


class Hover(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.height, self.speed, self.time = float(self.np_random.uniform(0.5, 1.5)), 0.0, 0
        return np.array([self.height, self.speed, 0.0], np.float32), {}

    def step(self, action):
        thrust = (0.0, 0.05, 0.1)[int(action)]
        self.speed = 0.99 * self.speed + thrust - 0.05 + 0.002 * math.sin(0.3 * self.time)
        self.height += 0.1 * self.speed
        self.time += 1
        obs = np.array([self.height, self.speed, self.time / 200], np.float32)
        #: env obs=obs count=self.time reward=self.height
        crashed = not 0.0 < self.height < 2.0
        return obs, -1.0 if crashed else 0.1, crashed, self.time >= 200, {}


class Centered(gym.Wrapper):
    """Rewards being near a height of one."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        reward -= 0.1 * abs(float(obs[0]) - 1.0)
        #: step obs=obs reward=reward
        return obs, reward, terminated, truncated, info


class EveryRollout(BaseCallback):
    def __init__(self):
        super().__init__()
        self.rollouts = 0

    def _on_rollout_end(self):
        self.rollouts += 1
        #: update count=self.rollouts net=self.model.policy reward=float(self.rollouts) steady=yes

    def _on_step(self):
        return True


def make():
    env = Centered(Hover())
    #: wrap env=env copies=8
    return Monitor(env)


model = A2C(
    "MlpPolicy",
    DummyVecEnv([make] * args.num_envs),
    n_steps=16,
    seed=1,
    device="cpu",
)
callback = EveryRollout()
#: setup net=model.policy
start = time.perf_counter()
model.learn(args.steps, callback=callback, log_interval=50)
seconds = time.perf_counter() - start
print(f"{callback.rollouts} rollouts, {args.steps / seconds:.0f} steps/s")
print(f"loop {seconds:.3f} s")
