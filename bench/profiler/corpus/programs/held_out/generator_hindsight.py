# type: ignore
"""Hindsight goals on a number line, with trajectories that generators hand from step to step."""

import argparse
import itertools
import time

import numpy as np
import torch
from torch import nn

#: length --episodes 850
#: imports

torch.set_num_threads(1)
BITS = 10

#: globals


class Switches:
    """Flip one of ten switches a step until they are as the goal says."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.state = self.rng.integers(0, 2, BITS).astype(np.float32)
        self.goal = self.rng.integers(0, 2, BITS).astype(np.float32)
        self.t = 0
        return self.state.copy()

    def step(self, action):
        self.state[action] = 1.0 - self.state[action]
        self.t += 1
        solved = bool((self.state == self.goal).all())
        reward = 0.0 if solved else -1.0
        obs = self.state.copy()
        #: env obs=obs reward=reward count=self.t
        return obs, reward, solved or self.t == BITS


class Store:
    def __init__(self, size, rng):
        self.rows = np.zeros((size, 3 * BITS + 2), np.float32)
        self.filled, self.rng = 0, rng

    def add(self, rows):
        at = np.arange(self.filled, self.filled + len(rows)) % len(self.rows)
        self.rows[at] = rows
        self.filled += len(rows)

    def batches(self, size, number):
        top = min(self.filled, len(self.rows))
        for count in range(number):
            rows = torch.from_numpy(self.rows[self.rng.integers(0, top, size)])
            #: sample count=count
            yield rows.split([BITS, 1, BITS, BITS, 1], 1)


def trajectory(env, choose):
    """Yield the transitions of one episode."""
    obs, end = env.reset(), False
    while not end:
        action = choose(obs, env.goal)
        after, reward, end = env.step(action)
        yield obs, action, after, reward == 0.0
        obs = after


def relabelled(steps, goal, rng):
    """Return rows for the true goal and for goals that were reached later."""
    rows = []
    for number, (obs, action, after, solved) in enumerate(steps):
        rows.append(np.concatenate([obs, [action], after, goal, [solved]]))
        for later in rng.integers(number, len(steps), 3):
            reached = steps[later][2]
            solved_then = float((after == reached).all())
            rows.append(np.concatenate([obs, [action], after, reached, [solved_then]]))
    return np.stack(rows)


def main(episodes):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env, store = Switches(rng), Store(60_000, rng)
    q = nn.Sequential(nn.Linear(2 * BITS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    q.append(nn.Linear(128, BITS))
    optimizer = torch.optim.Adam(q.parameters(), 1e-3, fused=True)

    def choose(obs, goal):
        if rng.random() < 0.15:
            return int(rng.integers(BITS))
        with torch.no_grad():
            return int(q(torch.from_numpy(np.concatenate([obs, goal]))).argmax())

    solved = []
    #: setup net=q
    start = time.perf_counter()
    for episode in range(episodes):
        steps = []
        for transition in trajectory(env, choose):
            steps.append(transition)
            #: step obs=transition[2] reward=float(transition[3]) count=len(steps) net=q
        store.add(relabelled(steps, env.goal, rng))
        solved.append(steps[-1][3])
        #: episode count=episode reward=float(solved[-1]) steady=yes
        for number, (obs, action, after, goal, done) in enumerate(store.batches(128, 8)):
            with torch.no_grad():
                best = q(torch.cat([after, goal], 1)).amax(1, keepdim=True)
                wanted = (done - 1.0) + 0.95 * (1.0 - done) * best
            chosen = q(torch.cat([obs, goal], 1)).gather(1, action.long())
            loss = nn.functional.smooth_l1_loss(chosen, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            #: update count=number net=q
    print(f"solved {np.mean(list(itertools.islice(reversed(solved), 100))):.2f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=850)
    main(parser.parse_args().episodes)
