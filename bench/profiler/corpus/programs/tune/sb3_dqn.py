# type: ignore
"""DQN from Stable-Baselines3 on a small inventory problem of my own."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

#: length --timesteps 9000
#: imports

torch.set_num_threads(1)

#: globals


class Warehouse(gym.Env):
    """Order none, some or many of three products, whose demand is random."""

    def __init__(self, days=60):
        self.observation_space = spaces.Box(0, 40, (4,), np.float32)
        self.action_space = spaces.Discrete(9)
        self.days = days

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.stock = [10, 10, 10]
        self.day = 0
        self.demand = self.np_random.poisson(3.0, (self.days, 3)).tolist()
        #: reset count=self.day
        return self.observe(), {}

    def observe(self):
        return np.array([*self.stock, self.day], np.float32)

    def step(self, action):
        product, amount = divmod(int(action), 3)
        self.stock[product] = min(self.stock[product] + 4 * amount, 40)
        profit = -2.0 * amount
        for item, wanted in enumerate(self.demand[self.day]):
            sold = min(self.stock[item], wanted)
            self.stock[item] -= sold
            profit += 1.5 * sold - 0.05 * self.stock[item]
        self.day += 1
        #: env reward=profit count=self.day
        return self.observe(), profit, False, self.day == self.days, {}


class Watch(BaseCallback):
    def __init__(self):
        super().__init__()
        self.profits = []

    def _on_step(self):
        self.profits.append(float(self.locals["rewards"][0]))
        #: step reward=self.profits[-1] count=self.num_timesteps obs=self.locals['new_obs'][0] net=self.model.q_net steady=yes
        return True


def main(timesteps):
    env = Warehouse()
    #: wrap env=env copies=1
    model = DQN(
        "MlpPolicy",
        env,
        learning_starts=500,
        train_freq=4,
        batch_size=64,
        target_update_interval=500,
        seed=7,
        device="cpu",
    )
    watch = Watch()
    #: setup net=model.q_net
    began = time.perf_counter()
    model.learn(timesteps, callback=watch)
    took = time.perf_counter() - began
    print(f"mean daily profit {np.mean(watch.profits[-600:]):.2f}")
    print(f"loop {took:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=9000)
    main(parser.parse_args().timesteps)
