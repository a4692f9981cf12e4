# type: ignore
"""Environment workers that share arrays with an actor-critic learner, in two halves by turns."""

import argparse
import multiprocessing
import time

import numpy as np
import torch
from torch import nn

#: length --rounds 6000
#: imports

torch.set_num_threads(1)
ENVS, FEATURES = 16, 6

#: globals


class Arrays:
    """Arrays in memory that processes share: an environment is a row."""

    def __init__(self, num):
        self.obs = self.make(num * FEATURES).reshape(num, FEATURES)
        self.rewards, self.ends = self.make(num), self.make(num)
        self.actions = self.make(num)

    @staticmethod
    def make(size):
        return np.frombuffer(multiprocessing.RawArray("f", size), np.float32)


def balance(arrays, state, lengths, rng):
    """Step poles on carts that stand in an array, and write what the learner reads."""
    push = np.where(arrays.actions > 0.5, 1.0, -1.0)
    for _ in range(40):
        x, v, angle, speed = state.T
        pull = 0.02 * (9.8 * np.sin(angle) - push * np.cos(angle))
        state[:, 0], state[:, 1] = x + 0.002 * v, v + 0.002 * push
        state[:, 2], state[:, 3] = angle + 0.002 * speed, speed + 0.1 * pull
    lengths += 1
    ends = (np.abs(state[:, 2]) > 0.4) | (np.abs(state[:, 0]) > 2.4) | (lengths >= 200)
    rewards = 1.0 - np.abs(state[:, 2])
    for number in np.nonzero(ends)[0]:
        state[number], lengths[number] = rng.uniform(-0.05, 0.05, 4), 0
        #: worker reward=float(rewards[number]) count=int(number) parallel=2
    arrays.obs[:, :4] = state
    arrays.obs[:, 4], arrays.obs[:, 5] = np.sin(state[:, 2]), np.cos(state[:, 2])
    arrays.rewards[:], arrays.ends[:] = rewards, ends


def work(arrays, go, ready, seed):
    rng = np.random.default_rng(seed)
    state = rng.uniform(-0.05, 0.05, (ENVS, 4))
    lengths = np.zeros(ENVS, int)
    while True:
        go.acquire()
        if arrays.actions[0] < 0:
            return
        balance(arrays, state, lengths, rng)
        ready.release()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6000)
    args = parser.parse_args()
    torch.manual_seed(0)
    halves, workers = [], []
    for seed in range(2):
        half = (Arrays(ENVS), multiprocessing.Semaphore(0), multiprocessing.Semaphore(0))
        workers.append(multiprocessing.Process(target=work, args=(*half, seed)))
        workers[-1].start()
        half[1].release()
        halves.append(half)
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    heads = nn.Linear(64, 3)
    optimizer = torch.optim.Adam([*net.parameters(), *heads.parameters()], 7e-4, fused=True)
    previous = [None, None]
    #: setup net=net
    start = time.perf_counter()
    for number in range(args.rounds):
        arrays, go, ready = halves[number % 2]
        ready.acquire()
        obs = torch.from_numpy(arrays.obs.copy())
        rewards = torch.from_numpy(arrays.rewards.copy())
        ends = torch.from_numpy(arrays.ends.copy())
        out = heads(net(obs))
        policy = torch.distributions.Categorical(logits=out[:, :2])
        action = policy.sample()
        arrays.actions[:] = action.numpy()
        go.release()  # this half steps while the learner learns and serves the other one
        #: step obs=arrays.obs[0] reward=float(rewards[0]) count=number net=net
        if previous[number % 2] is not None:
            last_obs, last_action = previous[number % 2]
            with torch.no_grad():
                goal = rewards + 0.97 * (1 - ends) * out[:, 2]
            last = heads(net(last_obs))
            advantage = goal - last[:, 2]
            chosen = torch.distributions.Categorical(logits=last[:, :2])
            actor = -(chosen.log_prob(last_action) * advantage.detach()).mean()
            loss = actor + 0.5 * advantage.square().mean() - 0.01 * chosen.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            #: update count=number net=net steady=yes
        previous[number % 2] = (obs, action)
    took = time.perf_counter() - start
    for (arrays, go, ready), worker in zip(halves, workers, strict=True):
        ready.acquire()
        arrays.actions[0] = -1
        go.release()
        worker.join()
    print(f"mean reward {float(rewards.mean()):.3f}")
    print(f"loop {took:.3f} s")


if __name__ == "__main__":
    main()
