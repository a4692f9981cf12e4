# type: ignore
"""Train PPO with Stable-Baselines3 and keep an eye on episode returns."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

#: length --timesteps 16384
#: imports

torch.set_num_threads(1)

#: globals


class ScaleReward(gym.RewardWrapper):
    """CartPole's rewards are too large for my value function."""

    def reward(self, reward):
        return 0.1 * reward


class ReturnLog(BaseCallback):
    def __init__(self):
        super().__init__()
        self.returns = []

    def _on_step(self):
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        #: step count=self.n_calls obs=self.locals['new_obs'][0] reward=float(self.locals['rewards'][0]) net=self.model.policy steady=yes
        return True

    def _on_rollout_end(self):
        #: episode count=self.n_calls net=self.model.policy opt=self.model.policy.optimizer
        self.logger.record("custom/mean_return", np.mean(self.returns[-50:] or [0.0]))


def scaled(env):
    env = ScaleReward(env)
    #: wrap env=env copies=4
    return env


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=16384)
    args = parser.parse_args()
    env = make_vec_env("CartPole-v1", n_envs=4, seed=3, wrapper_class=scaled)
    model = PPO("MlpPolicy", env, n_steps=256, batch_size=128, n_epochs=6, seed=3, device="cpu")
    callback = ReturnLog()
    #: setup net=model.policy
    start = time.perf_counter()
    model.learn(total_timesteps=args.timesteps, callback=callback)
    print(f"{len(callback.returns)} episodes, last {np.mean(callback.returns[-20:]):.0f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
