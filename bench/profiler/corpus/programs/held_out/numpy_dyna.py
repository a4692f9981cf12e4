# type: ignore
"""Dyna-Q in a maze that changes, with prioritized sweeping over a learned model."""

import argparse
import heapq
import random
import time

#: length --episodes 300
#: imports

SIZE = 12
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))

#: globals


class Maze:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.walls = {(x, y) for x in range(2, SIZE, 4) for y in range(SIZE - 2)}
        self.walls |= {(x, y) for x in range(4, SIZE, 4) for y in range(2, SIZE)}
        self.goal = (SIZE - 1, SIZE - 1)

    def reset(self):
        self.at, self.t = (0, 0), 0
        return self.at

    def step(self, action):
        if self.rng.random() < 0.1:
            action = self.rng.randrange(4)
        x, y = self.at[0] + MOVES[action][0], self.at[1] + MOVES[action][1]
        if 0 <= x < SIZE and 0 <= y < SIZE and (x, y) not in self.walls:
            self.at = (x, y)
        self.t += 1
        reward = 1.0 if self.at == self.goal else -0.01
        #: env reward=reward count=self.t
        return self.at, reward, self.at == self.goal or self.t == 400


class Planner:
    """Values, a model of the last outcome of each move, and a queue of surprising moves."""

    def __init__(self, gamma=0.97, rate=0.2):
        self.values, self.model, self.before = {}, {}, {}
        self.gamma, self.rate = gamma, rate

    def row(self, state):
        row = self.values.get(state)
        if row is None:
            row = self.values[state] = [0.0] * 4
        return row

    def surprise(self, state, action):
        reward, after, end = self.model[state, action]
        best = 0.0 if end else max(self.row(after))
        return reward + self.gamma * best - self.row(state)[action]

    def learn(self, state, action, reward, after, end, sweeps):
        self.model[state, action] = (reward, after, end)
        self.before.setdefault(after, set()).add((state, action))
        queue = [(-abs(self.surprise(state, action)), state, action)]
        for number in range(sweeps):
            if not queue:
                break
            _, state, action = heapq.heappop(queue)
            self.row(state)[action] += self.rate * self.surprise(state, action)
            for earlier, move in self.before.get(state, ()):
                size = abs(self.surprise(earlier, move))
                if size > 1e-3:
                    heapq.heappush(queue, (-size, earlier, move))
            #: update count=number reward=reward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=300)
    args = parser.parse_args()
    rng, env, planner = random.Random(0), Maze(1), Planner()
    lengths = []
    #: setup
    start = time.perf_counter()
    for episode in range(args.episodes):
        state, done, t = env.reset(), False, 0
        while not done:
            row = planner.row(state)
            greedy = row.index(max(row))
            action = rng.randrange(4) if rng.random() < 0.1 else greedy
            after, reward, done = env.step(action)
            planner.learn(state, action, reward, after, after == env.goal, 20)
            state, t = after, t + 1
            #: step reward=reward count=t
        lengths.append(t)
        #: episode count=episode reward=float(t) steady=yes
    print(f"mean length of the last 50 episodes {sum(lengths[-50:]) / 50:.1f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
