# type: ignore
"""Sarsa with tile coding on MountainCar."""

import argparse
import time

import gymnasium as gym
import numpy as np

#: length --episodes 1100
#: imports

#: globals


class Tiles:
    def __init__(self, low, high, bins=8, tilings=8):
        self.low, self.scale = low, bins / (high - low)
        self.side, self.tilings = bins + 2, tilings
        self.shifts = np.arange(tilings)[:, None] * np.array([1, 3]) / tilings % 1.0
        self.base = np.arange(tilings) * self.side**2
        self.size = tilings * self.side**2

    def active(self, obs):
        cells = ((obs - self.low) * self.scale + self.shifts).astype(np.int64)
        return self.base + cells[:, 0] * self.side + cells[:, 1]


class Sarsa:
    def __init__(self, tiles, alpha, epsilon, seed):
        self.tiles, self.alpha, self.epsilon = tiles, alpha / tiles.tilings, epsilon
        self.weights = np.zeros((3, tiles.size))
        self.rng = np.random.default_rng(seed)

    def values(self, active):
        return self.weights[:, active].sum(1)

    def choose(self, values):
        if self.rng.random() < self.epsilon:
            return int(self.rng.integers(3))
        return int(values.argmax())

    def learn(self, active, action, value, goal):
        self.weights[action, active] += self.alpha * (goal - value)
        #: update reward=goal obs=active


def run(env, agent, episodes, limit=200):
    lengths = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        active = agent.tiles.active(obs)
        values = agent.values(active)
        action = agent.choose(values)
        for step in range(limit):
            obs, reward, terminated, _, _ = env.step(action)
            following = agent.tiles.active(obs)
            next_values = agent.values(following)
            next_action = agent.choose(next_values)
            goal = reward + (0.0 if terminated else float(next_values[next_action]))
            agent.learn(active, action, float(values[action]), goal)
            active, values, action = following, next_values, next_action
            #: step obs=obs reward=float(reward) count=step
            if terminated:
                break
        lengths.append(step + 1)
        #: episode reward=float(step) count=episode obs=obs steady=yes
    return lengths


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=1100)
    parser.add_argument("--alpha", type=float, default=0.4)
    args = parser.parse_args()
    env = gym.make("MountainCar-v0")
    #: wrap env=env copies=1
    low, high = env.observation_space.low, env.observation_space.high
    agent = Sarsa(Tiles(low, high), args.alpha, epsilon=0.02, seed=0)
    #: setup
    t0 = time.perf_counter()
    lengths = run(env, agent, args.episodes)
    print(f"mean length of the last episodes: {np.mean(lengths[-20:]):.0f}")
    print(f"loop {time.perf_counter() - t0:.3f} s")
