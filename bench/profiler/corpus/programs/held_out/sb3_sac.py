# type: ignore
"""SAC on Pendulum with Stable-Baselines3 and an action-smoothing wrapper."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

#: length --total 1000
#: imports

torch.set_num_threads(1)

#: globals


class Smooth(gym.ActionWrapper):
    def __init__(self, env, keep=0.3):
        super().__init__(env)
        self.keep, self.last = keep, np.zeros(1, np.float32)

    def reset(self, **kwargs):
        self.last = np.zeros(1, np.float32)
        return self.env.reset(**kwargs)

    def action(self, action):
        self.last = self.keep * self.last + (1 - self.keep) * action
        #: env count=int(self.env.get_wrapper_attr('spec').max_episode_steps)
        return self.last


class Returns(BaseCallback):
    def __init__(self):
        super().__init__()
        self.current, self.all = 0.0, []

    def _on_step(self):
        reward = float(self.locals["rewards"][0])
        self.current += reward
        #: step reward=reward count=self.n_calls obs=self.locals['new_obs'][0] net=self.model.actor steady=yes
        if self.locals["dones"][0]:
            self.all.append(self.current)
            #: episode reward=self.current count=len(self.all) net=self.model.actor steady=yes
            self.current = 0.0
        return True


class Progress(BaseCallback):
    def __init__(self, every):
        super().__init__()
        self.every = every

    def _on_step(self):
        if self.n_calls % self.every == 0:
            print(f"step {self.num_timesteps}", flush=True)
        return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total", type=int, default=1000)
    options = parser.parse_args()
    env = Smooth(gym.make("Pendulum-v1"))
    #: wrap env=env copies=1
    model = SAC(
        "MlpPolicy",
        env,
        policy_kwargs={"net_arch": [64, 64]},
        learning_starts=100,
        batch_size=128,
        seed=0,
        device="cpu",
    )
    returns = Returns()
    #: setup net=model.actor
    tick = time.perf_counter()
    model.learn(options.total, callback=CallbackList([returns, Progress(250)]))
    tock = time.perf_counter()
    print([round(one) for one in returns.all])
    print(f"loop {tock - tick:.3f} s")
