"""SAC's and TD3's updates with a recurrent actor and recurrent critics, one step at a time.

The actor's core starts from stored hidden states, the critics' core from 0. The perceptrons behind
the cores, and the losses of single rows, are those of `off_policy`.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch

from tests.reference.memory import Core
from tests.reference.off_policy import SAC, TD3, follow, to_float64


class Sequences(NamedTuple):
    """Observations of each step, and of all steps with the last successor, (L, S, D)."""

    obs: torch.Tensor
    longer: torch.Tensor
    memory: torch.Tensor
    zeros: torch.Tensor

    @classmethod
    def of(cls, batch):
        count = len(batch.memory)
        obs, next_obs = (x.view(-1, count, x.shape[1]) for x in (batch.obs, batch.next_obs))
        longer = torch.cat([obs, next_obs[-1:]])
        return cls(obs, longer, batch.memory, torch.zeros_like(batch.memory))


class Cores:
    """The cores of actor and critics, with their targets."""

    def __init__(self, policy, values, kind):
        self.actor, self.critic = Core(policy, kind), Core(values, kind)
        self.actor_target, self.critic_target = map(copy.deepcopy, (self.actor, self.critic))


class RecurrentSAC(SAC):
    """SAC on sequences."""

    def __init__(self, action_spec, policy, values, config, kind):
        super().__init__(action_spec, policy, values, config)
        self.cores = Cores(policy, values, kind)
        self.policy_optimizer.add_param_group({"params": self.cores.actor.parameters()})
        self.critics.optimizer.add_param_group({"params": self.cores.critic.parameters()})

    def update(self, batch, draw_noise):
        batch, cores, config = to_float64(batch), self.cores, self.config
        rows, count = Sequences.of(batch), len(batch.memory)
        self.count += 1
        with torch.no_grad():
            features = cores.actor.rows(rows.longer, rows.memory)[count:]
            action, log_prob = self.draw(features, draw_noise())
            features = cores.critic_target.rows(rows.longer, rows.zeros)[count:]
            value = self.critics.minimum(self.critics.targets, features, action)
            target = batch.reward + batch.discount * (value - self.alpha * log_prob)
        unit = (batch.action - self.centre) / self.half
        features = cores.critic.rows(rows.obs, rows.zeros)
        td_error = self.critics.learn(features, unit, target, batch.importance)[1]
        follow(self.critics.targets, self.critics.modules, config.tau)
        follow(cores.critic_target, cores.critic, config.tau)
        if self.count % config.policy_frequency == 0:
            for _ in range(config.policy_frequency):
                self.learn_policy(rows, batch.importance, draw_noise())
        return td_error

    def learn_policy(self, rows, importance, noise):
        action, log_prob = self.draw(self.cores.actor.rows(rows.obs, rows.memory), noise)
        features = self.cores.critic.rows(rows.obs, rows.zeros)
        value = self.critics.minimum(self.critics.modules, features, action)
        loss = (importance * (self.alpha * log_prob - value)).mean()
        self.policy_optimizer.zero_grad()
        loss.backward()
        self.policy_optimizer.step()
        entropy = -(importance * log_prob).mean().detach()
        self.alpha_optimizer.zero_grad()
        (self.log_alpha.exp() * (entropy - self.target_entropy)).backward()
        self.alpha_optimizer.step()


class RecurrentTD3(TD3):
    """TD3 on sequences."""

    def __init__(self, action_spec, policy, values, config, kind):
        super().__init__(action_spec, policy, values, config)
        self.cores = Cores(policy, values, kind)
        self.optimizer.add_param_group({"params": self.cores.actor.parameters()})
        self.critics.optimizer.add_param_group({"params": self.cores.critic.parameters()})

    def update(self, batch, draw_noise):
        batch, cores, config = to_float64(batch), self.cores, self.config
        rows, count = Sequences.of(batch), len(batch.memory)
        self.count += 1
        with torch.no_grad():
            noise = (config.policy_noise * draw_noise()).clamp(
                -config.noise_clip, config.noise_clip
            )
            features = cores.actor_target.rows(rows.longer, rows.memory)[count:]
            action = (torch.tanh(self.policy_target(features)) + noise).clamp(-1, 1)
            features = cores.critic_target.rows(rows.longer, rows.zeros)[count:]
            value = self.critics.minimum(self.critics.targets, features, action)
            target = batch.reward + batch.discount * value
        unit = (batch.action - self.centre) / self.half
        features = cores.critic.rows(rows.obs, rows.zeros)
        td_error = self.critics.learn(features, unit, target, batch.importance)[1]
        if self.count % config.policy_frequency == 0:
            action = torch.tanh(self.policy(cores.actor.rows(rows.obs, rows.memory)))
            features = cores.critic.rows(rows.obs, rows.zeros)
            value = self.critics.modules[0](torch.cat([features, action], 1))[:, 0]
            self.optimizer.zero_grad()
            (-(batch.importance * value).mean()).backward()
            self.optimizer.step()
            for target_module, module in (
                (self.policy_target, self.policy),
                (cores.actor_target, cores.actor),
                (self.critics.targets, self.critics.modules),
                (cores.critic_target, cores.critic),
            ):
                follow(target_module, module, config.tau)
        return td_error
