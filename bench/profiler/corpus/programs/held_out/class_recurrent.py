# type: ignore
"""A recurrent policy gradient on a memory game, with an agent and a curriculum class."""

import argparse
import time

import numpy as np
import torch
from torch import nn

#: length --batches 50
#: imports

torch.set_num_threads(1)

#: globals


class RecallGame:
    """Shows a symbol, then noise, then asks which symbol it was. Batched."""

    def __init__(self, num, delay, seed):
        self.num, self.delay = num, delay
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.t = 0
        self.symbols = self.rng.integers(0, 4, self.num)
        obs = np.zeros((self.num, 6), np.float32)
        obs[np.arange(self.num), self.symbols] = 1.0
        #: reset count=self.t
        return obs

    def step(self, actions):
        self.t += 1
        done = self.t > self.delay
        reward = (actions == self.symbols).astype(np.float32) if done else np.zeros(self.num)
        obs = self.rng.normal(0, 0.1, (self.num, 6)).astype(np.float32)
        obs[:, 5] = self.t == self.delay
        #: env count=self.t reward=float(reward[0]) obs=obs[0]
        return obs, reward, done


class Curriculum:
    def __init__(self, first=4, last=24):
        self.delay, self.last = first, last

    def after(self, accuracy):
        if accuracy > 0.9 and self.delay < self.last:
            self.delay += 1


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 64)
        self.head = nn.Linear(64, 4)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=3e-3, fused=True)
        self.baseline = 0.25

    def play(self, game):
        obs, hidden, done, steps = game.reset(), torch.zeros(game.num, 64), False, 0
        while not done:
            hidden = self.cell(torch.from_numpy(obs), hidden)
            logits = self.head(hidden)
            log_probs = logits.log_softmax(-1)
            with torch.no_grad():
                gumbel = -torch.log(-torch.log(torch.rand_like(logits)))
                actions = (log_probs + gumbel).argmax(-1)
            obs, reward, done = game.step(actions.numpy())
            steps += 1
            #: step obs=obs[0] reward=float(reward[0]) count=steps net=self.head
        chosen = log_probs.gather(1, actions[:, None])[:, 0]
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        return chosen, torch.from_numpy(reward), entropy

    def learn(self, chosen, reward, entropy):
        loss = -(chosen * (reward - self.baseline)).mean() - 0.01 * entropy
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        accuracy = float(reward.mean())
        self.baseline += 0.1 * (accuracy - self.baseline)
        #: update reward=accuracy net=self.head
        return accuracy


def train(batches):
    torch.manual_seed(0)
    agent, curriculum, history = Agent(), Curriculum(first=20), []
    #: setup net=agent
    for batch in range(batches):
        game = RecallGame(256, curriculum.delay, seed=batch)
        for _ in range(2):
            history.append(agent.learn(*agent.play(game)))
        curriculum.after(history[-1])
        #: episode reward=history[-1] count=batch net=agent steady=yes
    return history


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=50)
    args = parser.parse_args()
    began = time.perf_counter()
    accuracies = train(args.batches)
    print(f"accuracy {np.mean(accuracies[-10:]):.2f}")
    print(f"loop {time.perf_counter() - began:.3f} s")
