"""Q-learning with priorities, whose update reads numbers from tensors one by one.

    hotloop profile examples/slow/eager_update.py
    hotloop profile examples/slow/eager_update.py --fix tiny
    hotloop profile examples/slow/eager_update.py --healthy

* sync: `.item()` fetches the new priority of each transition, before the next update.
* tiny: a loop of tiny operations computes the target of each transition.

`--fix` removes one of them and can be repeated. `--healthy` removes both.
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch
from torch import nn

OBS, ACTIONS, GAMMA = 16, 4, 0.99
CAUSES = ("sync", "tiny")


def network(width):
    return nn.Sequential(
        nn.Linear(OBS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, ACTIONS),
    )


class Learner:
    def __init__(self, width, num_transitions, fixed):
        self.online = network(width)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-4)
        self.priorities = np.ones(num_transitions)
        self.fixed = fixed

    def targets(self, reward, terminated, next_obs):
        with torch.no_grad():
            value = self.target(next_obs)
            if "tiny" in self.fixed:
                return reward + GAMMA * (1 - terminated) * value.amax(1)
            targets = torch.zeros(len(reward))
            for i in range(len(reward)):
                targets[i] = reward[i] + GAMMA * (1 - terminated[i]) * value[i].max()
            return targets

    def update(self, index, obs, action, reward, terminated, next_obs):
        targets = self.targets(reward, terminated, next_obs)
        value = self.online(obs).gather(1, action[:, None])[:, 0]
        error = targets - value
        loss = error.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if "sync" in self.fixed:
            self.priorities[index] = (error.detach().abs() + 1e-3).pow(0.6).numpy()
        else:
            for i in range(len(index)):
                self.priorities[index[i]] = (error[i].abs() + 1e-3).pow(0.6).item()


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--healthy", action="store_true", help="fix both causes")
    parser.add_argument("--fix", action="append", choices=CAUSES, default=[])
    parser.add_argument("--updates", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng, num_transitions = np.random.default_rng(0), 20_000
    fields = (
        torch.randn(num_transitions, OBS),
        torch.randint(ACTIONS, (num_transitions,)),
        torch.randn(num_transitions),
        (torch.rand(num_transitions) < 0.01).float(),
        torch.randn(num_transitions, OBS),
    )
    fixed = frozenset(CAUSES if options.healthy else options.fix)
    learner = Learner(options.width, num_transitions, fixed)
    start_s = time.perf_counter()
    for _ in range(options.updates):
        sums = np.cumsum(learner.priorities)
        index = np.searchsorted(sums, rng.random(options.batch) * sums[-1])
        learner.update(index, *(field[index] for field in fields))
    seconds = time.perf_counter() - start_s
    print(f"{options.updates} updates: {seconds:.2f} s, {options.updates / seconds:,.0f} a second")


if __name__ == "__main__":
    main()
