# type: ignore
"""Tabular Q-learning on a windy grid world."""

import argparse
import time

import numpy as np

#: length --episodes 24000
#: imports

parser = argparse.ArgumentParser()
parser.add_argument("--episodes", type=int, default=24000)
parser.add_argument("--alpha", type=float, default=0.2)
parser.add_argument("--epsilon", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)

WIDTH, HEIGHT, GOAL = 10, 7, (7, 3)
WIND = (0, 0, 0, 1, 1, 1, 2, 2, 1, 0)
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))
STEPS_PER_EPISODE = 60

#: globals


class WindyGrid:
    def __init__(self):
        self.x, self.y, self.steps = 0, 3, 0

    def reset(self):
        self.x, self.y, self.steps = 0, 3, 0
        return self.state()

    def state(self):
        return self.x * HEIGHT + self.y

    def step(self, action):
        dx, dy = MOVES[action]
        wind = WIND[self.x]
        self.x = min(max(self.x + dx, 0), WIDTH - 1)
        self.y = min(max(self.y + dy + wind, 0), HEIGHT - 1)
        self.steps += 1
        #: env count=self.steps
        at_goal = (self.x, self.y) == GOAL
        if at_goal:
            self.x, self.y = 0, 3
        return self.state(), 10.0 if at_goal else -1.0, self.steps >= STEPS_PER_EPISODE


def main():
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    env = WindyGrid()
    q = np.zeros((WIDTH * HEIGHT, 4))
    totals = []
    #: setup
    started = time.perf_counter()
    for episode in range(args.episodes):
        state, done, total = env.reset(), False, 0.0
        explore = rng.random(STEPS_PER_EPISODE) < args.epsilon
        random_actions = rng.integers(0, 4, STEPS_PER_EPISODE).tolist()
        step = 0
        while not done:
            action = random_actions[step] if explore[step] else int(q[state].argmax())
            following, reward, done = env.step(action)
            target = reward + 0.98 * q[following].max()
            q[state, action] += args.alpha * (target - q[state, action])
            state = following
            total += reward
            step += 1
            #: step reward=reward count=step table=q
        totals.append(total)
        #: episode reward=total count=episode table=q steady=yes
    print(f"mean return of the last 100 episodes: {np.mean(totals[-100:]):.1f}")
    print(f"loop {time.perf_counter() - started:.3f} s")


if __name__ == "__main__":
    main()
