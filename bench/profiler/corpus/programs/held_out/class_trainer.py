# type: ignore
"""A trainer with hooks that clones a scripted driver on a round course."""

import argparse
import math
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

#: length --epochs 25
#: imports

torch.set_num_threads(1)

#: globals


class Course:
    """A car on a circle, which should stay at radius 1."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        angle = self.rng.uniform(0, 2 * math.pi)
        radius = self.rng.uniform(0.8, 1.2)
        self.x, self.y = radius * math.cos(angle), radius * math.sin(angle)
        self.heading, self.t = angle + math.pi / 2, 0
        return self.observe()

    def observe(self):
        return np.array(
            [self.x, self.y, math.cos(self.heading), math.sin(self.heading)], np.float32
        )

    def step(self, steering):
        self.heading += 0.1 * max(-1.0, min(1.0, steering))
        self.x += 0.05 * math.cos(self.heading)
        self.y += 0.05 * math.sin(self.heading)
        self.t += 1
        obs, radius = self.observe(), math.hypot(self.x, self.y)
        reward = 1.0 - abs(radius - 1.0)
        #: env obs=obs reward=reward count=self.t
        return obs, reward, self.t == 200


def driver(obs):
    x, y, cos, sin = obs.tolist()
    radius = math.hypot(x, y)
    outward = (cos * x + sin * y) / radius
    return 0.5 + 3.0 * outward + 2.0 * (radius - 1.0)


class Hook:
    def on_batch_end(self, trainer, number, loss):
        pass

    def on_epoch_end(self, trainer, epoch):
        pass


class Losses(Hook):
    def __init__(self):
        self.all = []

    def on_batch_end(self, trainer, number, loss):
        self.all.append(loss.detach())
        #: update count=number net=trainer.model


class Evaluate(Hook):
    def __init__(self, env):
        self.env, self.returns = env, []

    def on_epoch_end(self, trainer, epoch):
        obs, total, done, t = self.env.reset(), 0.0, False, 0
        while not done:
            with torch.no_grad():
                action = trainer.model(torch.from_numpy(obs)).item()
            obs, reward, done = self.env.step(action)
            total += reward
            t += 1
            #: step obs=obs reward=reward count=t net=trainer.model
        self.returns.append(total)
        #: episode count=epoch reward=total steady=yes


class Trainer:
    def __init__(self, model, hooks, rate=1e-3):
        self.model, self.hooks = model, hooks
        self.optimizer = torch.optim.Adam(model.parameters(), rate)

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for number, (obs, target) in enumerate(loader):
                loss = nn.functional.mse_loss(self.model(obs).squeeze(1), target)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                for hook in self.hooks:
                    hook.on_batch_end(self, number, loss)
            for hook in self.hooks:
                hook.on_epoch_end(self, epoch)


def demonstrations(env, episodes):
    observations, actions = [], []
    for _ in range(episodes):
        obs, done = env.reset(), False
        while not done:
            observations.append(obs)
            actions.append(driver(obs))
            obs, _, done = env.step(actions[-1])
    return torch.from_numpy(np.stack(observations)), torch.tensor(actions)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = TensorDataset(*demonstrations(Course(0), 100))
    # Batches are drawn as slices of one permutation, so a sample costs nothing by itself.
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 128, False)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    model = nn.Sequential(
        nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)
    )
    losses, evaluate = Losses(), Evaluate(Course(1))
    #: setup net=model
    start = time.perf_counter()
    Trainer(model, [losses, evaluate]).fit(loader, args.epochs)
    print(f"loss {losses.all[-1]:.4f}, return {evaluate.returns[-1]:.1f}")
    print(f"loop {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
