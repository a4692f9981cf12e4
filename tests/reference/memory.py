"""A recurrent actor and critic, one environment and one step at a time, in float64."""

from __future__ import annotations

import torch
from torch import nn


def core_step(kind, weight, bias, obs, memory):
    """Return a recurrent layer's output and next hidden state in one environment."""
    size = len(weight) - len(obs)
    obs_parts = [obs @ part for part in weight[: len(obs)].split(size, 1)]
    output_parts = [memory[:size] @ part for part in weight[len(obs) :].split(size, 1)]
    biases = bias.split(size)
    if kind == "lstm":
        i, f, o, g = (x + h + b for x, h, b in zip(obs_parts, output_parts, biases, strict=True))
        cell = torch.sigmoid(f) * memory[size:] + torch.sigmoid(i) * torch.tanh(g)
        output = torch.sigmoid(o) * torch.tanh(cell)
        return output, torch.cat([output, cell])
    r = torch.sigmoid(obs_parts[0] + output_parts[0] + biases[0])
    z = torch.sigmoid(obs_parts[1] + output_parts[1] + biases[1])
    n = torch.tanh(obs_parts[2] + biases[2] + r * output_parts[2])
    output = (1 - z) * n + z * memory
    return output, output


class Core(nn.Module):
    """A recurrent layer alone, built from its parameters by name."""

    def __init__(self, params, kind):
        super().__init__()
        self.kind = kind
        self.weight, self.bias = (
            nn.Parameter(torch.as_tensor(params[f"memory.{name}"]).double().clone())
            for name in ("weight", "bias")
        )

    def rows(self, obs, memory):
        """Return the outputs of sequences of one episode, (L, S, D), as rows, (L · S, H)."""
        sequences = []
        for s in range(obs.shape[1]):
            state, outputs = memory[s], []
            for step_obs in obs[:, s]:
                output, state = core_step(self.kind, self.weight, self.bias, step_obs, state)
                outputs.append(output)
            sequences.append(torch.stack(outputs))
        return torch.stack(sequences, 1).flatten(0, 1)


class RecurrentNetworks(nn.Module):
    """A recurrent network, built from its parameters by name."""

    def __init__(self, params, kind):
        super().__init__()
        self.kind = kind
        self.named = nn.ParameterDict(
            {name.replace(".", "_"): torch.from_numpy(x).double() for name, x in params.items()}
        )
        self.num_layers = sum(f"policy.{k}.weight" in params for k in range(len(params)))

    def step(self, obs, memory):
        """Return one environment's head, value and next hidden state."""
        weight, bias = self.named["memory_weight"], self.named["memory_bias"]
        output, memory = core_step(self.kind, weight, bias, obs, memory)
        return self.perceptron("policy", output), self.perceptron("value", output)[0], memory

    def perceptron(self, name, x):
        for k in range(self.num_layers):
            x = x @ self.named[f"{name}_{k}_weight"] + self.named[f"{name}_{k}_bias"]
            x = torch.tanh(x) if k < self.num_layers - 1 else x
        return x

    def unroll(self, obs, memory, begins):
        """Return heads, (L, S, H), and values, (L, S), of sequences, (L, S, D)."""
        heads, values = [], []
        for s in range(obs.shape[1]):
            state = memory[s]
            outputs = []
            for t in range(len(obs)):
                if begins[t, s]:
                    state = torch.zeros_like(state)
                head, value, state = self.step(obs[t, s], state)
                outputs.append((head, value))
            heads.append(torch.stack([head for head, _ in outputs]))
            values.append(torch.stack([value for _, value in outputs]))
        return torch.stack(heads, 1), torch.stack(values, 1)

    def numpy(self):
        """Return the parameters by name."""
        return {name.replace("_", "."): x.detach().numpy() for name, x in self.named.items()}


class PopArt:
    """A value's last layer with normalized outputs, rescaled when the statistics change.

    van Hasselt et al. 2016, arXiv:1602.07714, algorithm 1.
    """

    def __init__(self, networks):
        last = f"value_{networks.num_layers - 1}"
        self.weight, self.bias = networks.named[f"{last}_weight"], networks.named[f"{last}_bias"]
        self.weight.data.zero_()
        self.bias.data.zero_()
        self.sums = torch.zeros(3, dtype=torch.float64)
        self.mean, self.std = None, None

    def add(self, returns, weight):
        new = torch.stack([(weight * returns**k).mean() for k in range(3)])
        self.sums = 0.998 * self.sums + 0.002 * new
        mean, square = self.sums[1] / self.sums[0], self.sums[2] / self.sums[0]
        std = max(square - mean**2, square / 100).sqrt()
        if self.mean is not None:
            self.bias.data = (self.std * self.bias.data + self.mean - mean) / std
            self.weight.data *= self.std / std
        self.mean, self.std = mean, std

    def denormalize(self):
        self.weight.data *= self.std
        self.bias.data = self.std * self.bias.data + self.mean


def learn(networks, optimizer, batch, orders, config):
    """Run all epochs of PPO on sequences, (L, S, …)."""
    size = batch["obs"].shape[1] // config.num_minibatches
    pop_art = PopArt(networks) if config.has_normalized_value else None
    for order in orders:
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            rows = {name: x[:, indices] for name, x in batch.items() if name != "memory"}
            heads, value = networks.unroll(rows["obs"], batch["memory"][indices], rows["begins"])
            distribution = torch.distributions.Categorical(logits=heads)
            ratio = (distribution.log_prob(rows["action"]) - rows["log_prob"]).exp()
            advantages, weight = rows["advantages"], rows["weight"]
            mean = (weight * advantages).sum() / weight.sum()
            count = advantages.numel()
            variance = (weight * (advantages - mean) ** 2).sum() / weight.sum()
            std = (variance * count / (count - 1)).sqrt()
            advantages = (advantages - mean) / (std + 1e-8)
            low, high = 1 - config.clip_range, 1 + config.clip_range
            surrogate = torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
            returns = rows["returns"]
            if pop_art is not None:  # the layer's output was not rescaled yet
                pop_art.add(returns, weight)
                _, value = networks.unroll(rows["obs"], batch["memory"][indices], rows["begins"])
                returns = (returns - pop_art.mean) / pop_art.std
            loss = (
                -(weight * surrogate).mean()
                + config.value_coef * (weight * (value - returns) ** 2).mean()
                - config.entropy_coef * (weight * distribution.entropy()).mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(networks.parameters(), config.max_grad_norm)
            optimizer.step()
    if pop_art is not None:
        pop_art.denormalize()
