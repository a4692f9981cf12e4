# type: ignore
"""Two environment processes behind pipes, each of which steps many carts, and a small DQN."""

import argparse
import copy
import multiprocessing
import time

import numpy as np
import torch
from torch import nn

#: length --steps 2700
#: imports

torch.set_num_threads(1)

#: globals


class Drones:
    """Several drones in a column of air, plain Python."""

    def __init__(self, num, seed):
        self.rng = np.random.default_rng(seed)
        self.drones = [self.fresh() for _ in range(num)]

    def fresh(self):
        return [float(self.rng.uniform(0.3, 0.7)), 0.0, 0]

    def observe(self):
        return np.array([(height, speed) for height, speed, _ in self.drones], np.float32)

    def step(self, actions):
        rewards, ends = [], []
        for number, (drone, action) in enumerate(zip(self.drones, actions.tolist(), strict=True)):
            for _ in range(10):
                lift = 0.0004 if action else -0.0004
                drone[1] = 0.995 * drone[1] + lift
                drone[0] += 0.1 * drone[1]
            drone[2] += 1
            out = not 0.0 < drone[0] < 1.0
            rewards.append(-1.0 if out else 0.1 - abs(drone[0] - 0.5))
            ends.append(out or drone[2] == 100)
            #: worker reward=rewards[-1] count=drone[2] parallel=2
            if ends[-1]:
                self.drones[number] = self.fresh()
        return self.observe(), np.array(rewards, np.float32), np.array(ends)


def serve(pipe, num, seed):
    env = Drones(num, seed)
    pipe.send(env.observe())
    while (actions := pipe.recv()) is not None:
        pipe.send(env.step(actions))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2700)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    num = 24
    pipes, workers = [], []
    for seed in range(2):
        ours, theirs = multiprocessing.Pipe()
        workers.append(multiprocessing.Process(target=serve, args=(theirs, num, seed)))
        workers[-1].start()
        pipes.append(ours)
    q = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    target = copy.deepcopy(q)
    optimizer = torch.optim.Adam(q.parameters(), 1e-3, fused=True)
    obs = np.concatenate([pipe.recv() for pipe in pipes])
    memory = np.zeros((40_000, 7), np.float32)
    filled = 0
    #: setup net=q
    start = time.perf_counter()
    for step in range(args.steps):
        with torch.no_grad():
            actions = q(torch.from_numpy(obs)).argmax(1).numpy()
        random = rng.random(2 * num) < 0.1
        actions = np.where(random, rng.integers(0, 2, 2 * num), actions)
        for pipe, part in zip(pipes, np.split(actions, 2), strict=True):
            pipe.send(part)
        # Learn while the environments are at work.
        if filled:
            rows = torch.from_numpy(memory[rng.integers(0, min(filled, len(memory)), 128)])
            state, action, reward, following, end = rows.split([2, 1, 1, 2, 1], 1)
            with torch.no_grad():
                goal = reward + 0.97 * (1 - end) * target(following).amax(1, keepdim=True)
            loss = (q(state).gather(1, action.long()) - goal).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            #: update count=step net=q steady=yes
        parts = zip(*(pipe.recv() for pipe in pipes), strict=True)
        following, rewards, ends = (np.concatenate(part) for part in parts)
        rows = np.arange(filled, filled + 2 * num) % len(memory)
        memory[rows] = np.column_stack([obs, actions, rewards, following, ends])
        filled += 2 * num
        obs = following
        #: step obs=obs[0] reward=float(rewards[0]) count=step net=q steady=yes
        if step % 100 == 0:
            target.load_state_dict(q.state_dict())
    took = time.perf_counter() - start
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send(None)
        worker.join()
    print(f"mean reward {float(rewards.mean()):.3f}")
    print(f"loop {took:.3f} s")


if __name__ == "__main__":
    main()
