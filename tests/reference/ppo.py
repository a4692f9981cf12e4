"""PPO's update with torch modules and a torch optimizer, one minibatch after another."""

from __future__ import annotations

import torch
from torch import nn


class ScaledNormal:
    """Independent normal numbers u of the actions c + h · u, with the density of u."""

    def __init__(self, mean, std, center, half_width):
        normal = torch.distributions.Normal(mean, std)
        self._unit = torch.distributions.Independent(normal, 1)
        self._center, self._half_width = center, half_width

    def sample(self):
        return self._center + self._half_width * self._unit.sample()

    def log_prob(self, action):
        return self._unit.log_prob((action - self._center) / self._half_width)

    def entropy(self):
        return self._unit.entropy()


class Independent:
    """Several distributions side by side, each with its columns of an action."""

    def __init__(self, columns):
        self._columns = columns

    def sample(self):
        return torch.cat([part.sample().reshape(-1, width) for part, width in self._columns], 1)

    def log_prob(self, action):
        parts = action.split([width for _, width in self._columns], 1)
        terms = []
        for (part, _), x in zip(self._columns, parts, strict=True):
            is_choice = isinstance(part, torch.distributions.Categorical)
            terms.append(part.log_prob(x[:, 0].long() if is_choice else x))
        return torch.stack(terms).sum(0)

    def entropy(self):
        return torch.stack([part.entropy() for part, _ in self._columns]).sum(0)


class ActorCriticNetworks(nn.Module):
    """Two perceptrons with the parameters of an actor and critic.

    Args:
        params: the parameters by name.
        action_scale: c and h, float32, (A,), of continuous actions c + h · u.
        nvec: numbers of choices of the discrete columns before continuous ones.
    """

    def __init__(self, params, action_scale=(0.0, 1.0), nvec=()):
        super().__init__()
        self._nvec = nvec
        self._action_scale = [torch.as_tensor(x) for x in action_scale]
        self.policy = self._perceptron(params, "policy")
        self.value = self._perceptron(params, "value")
        self.log_std = None
        if "policy.log_std" in params:
            self.log_std = nn.Parameter(torch.from_numpy(params["policy.log_std"].copy()))

    @staticmethod
    def _perceptron(params, name):
        layers = []
        for k in range(sum(f"{name}.{k}.weight" in params for k in range(len(params)))):
            weight = torch.from_numpy(params[f"{name}.{k}.weight"].T.copy())
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.weight.data = weight
            linear.bias.data = torch.from_numpy(params[f"{name}.{k}.bias"].copy())
            layers += [linear, nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def distribution(self, obs):
        head = self.policy(obs)
        if self.log_std is not None:
            *logits, mean = head.split([*self._nvec, len(self.log_std)], -1)
            normal = ScaledNormal(mean, self.log_std.exp(), *self._action_scale)
            if not logits:
                return normal
            choices = [(torch.distributions.Categorical(logits=x), 1) for x in logits]
            return Independent([*choices, (normal, len(self.log_std))])
        return torch.distributions.Categorical(logits=head)

    def numpy(self):
        """Return the parameters by the names of an actor and critic."""
        named = {}
        for name, net in (("policy", self.policy), ("value", self.value)):
            linears = [layer for layer in net if isinstance(layer, nn.Linear)]
            for k, linear in enumerate(linears):
                named[f"{name}.{k}.weight"] = linear.weight.detach().T.numpy()
                named[f"{name}.{k}.bias"] = linear.bias.detach().numpy()
        if self.log_std is not None:
            named["policy.log_std"] = self.log_std.detach().numpy()
        return named


def learn(networks, optimizer, batch, orders, config):
    """Run all epochs on one fragment; return the number of optimizer steps."""
    steps = 0
    for order in orders:
        for start in range(0, config.batch_size, config.minibatch_size):
            rows = order[start : start + config.minibatch_size]
            obs, action, old_log_prob, old_value, advantages, returns = (x[rows] for x in batch[:6])
            distribution = networks.distribution(obs)
            log_ratio = distribution.log_prob(action) - old_log_prob
            ratio = log_ratio.exp()
            kl = ((ratio - 1) - log_ratio).mean().item()
            if config.target_kl is not None and kl > 1.5 * config.target_kl:
                return steps
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            low, high = 1 - config.clip_range, 1 + config.clip_range
            surrogate = torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
            value = networks.value(obs)[:, 0]
            squared = (value - returns) ** 2
            if config.clip_value_loss:
                change = (value - old_value).clamp(-config.clip_range, config.clip_range)
                squared = torch.max(squared, (old_value + change - returns) ** 2)
            loss = (
                -surrogate.mean()
                + config.value_coef * squared.mean()
                - config.entropy_coef * distribution.entropy().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(networks.parameters(), config.max_grad_norm)
            optimizer.step()
            steps += 1
    return steps
