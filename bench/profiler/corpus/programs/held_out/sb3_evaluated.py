# type: ignore
"""PPO on my own cart with a moving goal; evaluated from time to time."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

#: length --timesteps 20480
#: imports

torch.set_num_threads(1)

#: globals


class Chase(gym.Env):
    def __init__(self, length=120):
        self.observation_space = gym.spaces.Box(-5, 5, (4,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.v, self.t = 0.0, 0.0, 0
        self.goals = self.np_random.uniform(-1, 1, 1 + self.length // 20).tolist()
        #: reset count=self.t
        return self._obs(), {}

    def _obs(self):
        goal = self.goals[self.t // 20]
        return np.array([self.x, self.v, goal, self.x - goal], np.float32)

    def step(self, action):
        push = min(max(float(action[0]), -1.0), 1.0)
        self.v = 0.9 * self.v + 0.1 * push
        self.x += 0.5 * self.v
        self.t += 1
        obs = self._obs()
        reward = -abs(float(obs[3])) - 0.01 * push * push
        #: env obs=obs reward=reward count=self.t
        return obs, reward, False, self.t >= self.length, {}


class Rollouts(BaseCallback):
    def __init__(self):
        super().__init__()
        self.ended = 0

    def _on_rollout_end(self):
        self.ended += 1
        #: update count=self.ended net=self.model.policy steady=yes

    def _on_step(self):
        #: step count=self.n_calls obs=self.locals['new_obs'][0] reward=float(self.locals['rewards'][0]) net=self.model.policy steady=yes
        return True


def make_env():
    env = Chase()
    #: wrap env=env copies=4
    return Monitor(env)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=20480)
    timesteps = parser.parse_args().timesteps
    venv = VecNormalize(DummyVecEnv([make_env for _ in range(4)]))
    test_env = VecNormalize(DummyVecEnv([lambda: Monitor(Chase())]), training=False)
    model = PPO("MlpPolicy", venv, n_steps=256, batch_size=256, n_epochs=5, seed=11, device="cpu")
    evaluation = EvalCallback(test_env, eval_freq=2000, n_eval_episodes=1, verbose=0)
    #: setup net=model.policy
    started = time.perf_counter()
    model.learn(timesteps, callback=[Rollouts(), evaluation])
    print(f"last evaluation {evaluation.last_mean_reward:.1f}")
    print(f"loop {time.perf_counter() - started:.3f} s")


if __name__ == "__main__":
    main()
