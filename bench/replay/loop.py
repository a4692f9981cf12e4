"""A SAC-like training loop around a replay buffer that times every part of an update.

It has an actor and twin critics of 2 × 256 units, batches of 256, Adam, target critics and a fixed
temperature. Adding one transition per update replaces the environment's step.
"""

from __future__ import annotations

import copy
import time

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from bench.replay.contenders import ACTION, BATCH, OBS, Contender, Steps

HIDDEN, GAMMA, TAU, TEMPERATURE, LEARNING_RATE = 256, 0.99, 0.005, 0.2, 3e-4
POOL = 64
PARTS = ("sample", "tensors", "update", "add", "learn", "iteration")


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    return nn.Sequential(
        *(nn.Linear(inputs, HIDDEN), nn.ReLU()),
        *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, outputs),
    )


class Learner:
    """The networks and their update."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.actor = mlp(OBS, 2 * ACTION)
        self.critics = nn.ModuleList(mlp(OBS + ACTION, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), LEARNING_RATE)
        self.critics_adam = torch.optim.Adam(self.critics.parameters(), LEARNING_RATE)

    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a squashed Gaussian's sample and its log-probability."""
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        # A numerically stable form of log(1 − tanh²).
        squash = 2 * (np.log(2) - raw - functional.softplus(-2 * raw))
        return torch.tanh(raw), (normal.log_prob(raw) - squash).sum(-1)

    def learn(
        self,
        obs: torch.Tensor,
        action: torch.Tensor,
        reward: torch.Tensor,
        next_obs: torch.Tensor,
        terminated: torch.Tensor,
        importance: torch.Tensor | None,
    ) -> npt.NDArray[np.float32]:
        """Update critics, actor and targets; return the absolute TD errors, (256,)."""
        reward, terminated = reward.reshape(-1), terminated.reshape(-1).float()
        with torch.no_grad():
            following, log_prob = self.act(next_obs)
            both = torch.cat((next_obs, following), -1)
            value = torch.minimum(*(critic(both).squeeze(-1) for critic in self.targets))
            value -= TEMPERATURE * log_prob
            td_target = reward + GAMMA * (1 - terminated) * value
        both = torch.cat((obs, action), -1)
        errors = [critic(both).squeeze(-1) - td_target for critic in self.critics]
        squares = errors[0].square() + errors[1].square()
        if importance is not None:
            squares = squares * importance.reshape(-1)
        self.critics_adam.zero_grad()
        squares.mean().backward()
        self.critics_adam.step()

        self.critics.requires_grad_(False)
        chosen, log_prob = self.act(obs)
        both = torch.cat((obs, chosen), -1)
        value = torch.minimum(*(critic(both).squeeze(-1) for critic in self.critics))
        self.actor_adam.zero_grad()
        (TEMPERATURE * log_prob - value).mean().backward()
        self.actor_adam.step()
        self.critics.requires_grad_(True)

        with torch.no_grad():
            for target, source in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                target.lerp_(source, TAU)
            return errors[0].abs().numpy().astype(np.float32)


class Loop:
    """A training loop with one contender's batches."""

    def __init__(self, contender: Contender, threads: int) -> None:
        torch.set_num_threads(threads)
        self.contender = contender
        self.learner = Learner()
        self.steps = Steps()
        self.number = contender.next_number
        weights = contender.weights
        # New weights are TD errors, or come from this pool if the weights are of another kind.
        self.from_td = weights is not None and weights.kind == "td"
        self.pool = [np.zeros(BATCH)] * POOL
        if weights is not None:
            self.pool = [weights.draw(BATCH) for _ in range(POOL)]

    def time_update(self) -> tuple[float, ...]:
        """Make one update; return the seconds of each of `PARTS`."""
        clock, contender = time.perf_counter, self.contender
        step = self.steps.transition(self.number)
        pool = self.pool[self.number % POOL]
        one_weight = float(pool[self.number % BATCH])
        self.number += 1
        start_s = clock()
        batch = contender.sample()
        sampled = clock()
        tensors = contender.tensors(batch)
        converted = clock()
        td = self.learner.learn(*tensors)
        learned = clock()
        contender.update(batch, td if self.from_td else pool)
        updated = clock()
        contender.add(step, one_weight)
        added = clock()
        return (
            sampled - start_s,
            converted - sampled,
            updated - learned,
            added - updated,
            learned - converted,
            added - start_s,
        )
