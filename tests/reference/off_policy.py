"""The updates of SAC, TQC, CrossQ, TD3 and DQN with torch modules, torch's Adam and `.backward()`.

Everything is in float64, so that differences come from hotloop.
"""

from __future__ import annotations

import copy
import math
from functools import partial

import torch
from torch import nn

from hotloop.envs.spaces import ActionSpec
from hotloop.training import ReplayBatch


def random_batch(obs_size: int, action_spec: ActionSpec, size: int, seed: int, *, weighed=False):
    """Return a batch of random transitions, of which a third end an episode."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    uniform = torch.rand(size, len(action_spec.low) or 1, generator=generator)
    if action_spec.kind == "discrete":
        action = (uniform[:, 0] * action_spec.num_actions).long()
    else:
        low, high = torch.tensor(action_spec.low), torch.tensor(action_spec.high)
        action = low + (high - low) * uniform
    is_end = torch.rand(size, generator=generator) < 1 / 3
    importance = torch.ones(size)
    if weighed:
        importance = 0.1 + 0.9 * torch.rand(size, generator=generator)
    batch = ReplayBatch(
        obs=normal(size, obs_size),
        action=action,
        reward=3 * normal(size),
        next_obs=normal(size, obs_size),
        discount=torch.where(is_end, 0.0, 0.98),
        importance=importance,
    )
    if weighed:
        batch = batch._replace(weight=0.2 + 1.6 * torch.rand(size, generator=generator))
    return batch


# --- networks ------------------------------------------------------------------------------------


def linear(weight, bias):
    """Return a layer with these parameters; hotloop's weights are (inputs, outputs)."""
    layer = nn.Linear(*weight.shape, dtype=torch.float64)
    layer.weight.data.copy_(torch.as_tensor(weight).T)
    layer.bias.data.copy_(torch.as_tensor(bias).reshape(-1))
    return layer


class NoisyLinear(nn.Module):
    """A linear layer whose noise is set from outside, Fortunato et al. 2018.

    Args:
        layer: the means.
        stds: σ of the weights, (inputs, outputs), and of the bias.
        numbers: positions of ε and ε' in the noise of all layers.
    """

    def __init__(self, layer, stds, numbers):
        super().__init__()
        self.mean, self.std, self.numbers = layer, linear(*stds), numbers
        self.noise = None

    def forward(self, inputs):
        if self.noise is None:
            return self.mean(inputs)
        scaled = self.noise.sign() * self.noise.abs().sqrt()
        inputs_noise, outputs_noise = (scaled[part] for part in self.numbers)
        weight = self.mean.weight + self.std.weight * torch.outer(outputs_noise, inputs_noise)
        bias = self.mean.bias + self.std.bias * outputs_noise
        return inputs @ weight.T + bias


def set_noise(module, noise):
    """Set the noise of all layers, (K,), and return the module. None: the means."""
    for part in module.modules():
        if isinstance(part, NoisyLinear):
            part.noise = noise
    return module


def layer_of(params, name, columns=slice(None)):
    """Return a layer, or some columns of its outputs, with noise if it has any."""
    weight, bias = params[f"{name}.weight"][:, columns], params[f"{name}.bias"][columns]
    layer = linear(weight, bias)
    if f"{name}.weight_std" not in params:
        return layer
    start = 0
    for other, x in params.items():
        if other == f"{name}.weight":
            break
        start += sum(x.shape) if other.endswith(".weight") else 0
    num_inputs, num_outputs = params[f"{name}.weight"].shape
    inputs = torch.arange(start, start + num_inputs)
    outputs = torch.arange(start + num_inputs, start + num_inputs + num_outputs)[columns]
    stds = params[f"{name}.weight_std"][:, columns], params[f"{name}.bias_std"][columns]
    return NoisyLinear(layer, stds, (inputs, outputs))


def layer_names(params):
    """Return the names of the policy's layers, in order."""
    names = (name.rpartition(".") for name in params)
    return [layer for layer, _, kind in names if kind == "weight" and layer.startswith("policy")]


def actor_module(config, params):
    """Return the perceptron of an actor."""
    activation = nn.Tanh if config.activation == "tanh" else nn.ReLU
    layers = []
    for name in layer_names(params):
        layers += [layer_of(params, name), activation()]
    return nn.Sequential(*layers[:-1])


def critic_modules(config, params):
    """Return one perceptron for each critic."""
    modules, hidden_sizes = [], config.hidden_sizes
    for k in range(len(params[f"critic.{len(hidden_sizes)}.weight"])):
        layers, depth = [], len(hidden_sizes)
        for j in range(depth + 1):
            weight, bias = params[f"critic.{j}.weight"], params[f"critic.{j}.bias"]
            if j == 0:
                width = hidden_sizes[0]
                columns = slice(k * width, (k + 1) * width)
                layers.append(linear(weight[:, columns], bias[columns]))
            else:
                layers.append(linear(weight[k], bias[k]))
            if j == depth:
                break
            if config.layer_norm:
                norm = nn.LayerNorm(hidden_sizes[j], dtype=torch.float64)
                norm.weight.data.copy_(torch.as_tensor(params[f"critic.{j}.scale"])[k, 0])
                norm.bias.data.copy_(torch.as_tensor(params[f"critic.{j}.shift"])[k, 0])
                layers.append(norm)
            layers.append(nn.ReLU())
        modules.append(nn.Sequential(*layers))
    return nn.ModuleList(modules)


class BatchRenormalization(nn.Module):
    """Ioffe 2017, algorithm 1, with biased variances, and the running ones in evaluation mode."""

    def __init__(self, scale, shift):
        super().__init__()
        self.scale = nn.Parameter(torch.as_tensor(scale).double().reshape(-1).clone())
        self.shift = nn.Parameter(torch.as_tensor(shift).double().reshape(-1).clone())
        self.register_buffer("mean", torch.zeros_like(self.scale.data))
        self.register_buffer("variance", torch.ones_like(self.scale.data))
        self.is_warm, self.rate, self.num_clipped = False, 0.01, 0

    def forward(self, x):
        running_std = torch.sqrt(self.variance + 1e-3)
        if not self.training:
            return (x - self.mean) / running_std * self.scale + self.shift
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        std = torch.sqrt(variance + 1e-3)
        r, d = torch.ones_like(std), torch.zeros_like(std)
        if self.is_warm:
            r, d = std.detach() / running_std, (mean.detach() - self.mean) / running_std
            self.num_clipped += int(((r > 3) | (r < 1 / 3) | (d.abs() > 5)).sum())
            r, d = r.clamp(1 / 3, 3), d.clamp(-5, 5)
        self.mean = (1 - self.rate) * self.mean + self.rate * mean.detach()
        self.variance = (1 - self.rate) * self.variance + self.rate * variance.detach()
        return ((x - mean) / std * r + d) * self.scale + self.shift


def normalized_modules(prefix, params, activation):
    """Return perceptrons whose layers follow a batch renormalization each."""
    depth = sum(name.endswith(".weight") for name in params)
    modules = []
    for k in range(len(params[f"{prefix}.0.weight"])):
        layers = []
        for j in range(depth):
            scale, shift, weight, bias = (
                params[f"{prefix}.{j}.{part}"][k] for part in ("scale", "shift", "weight", "bias")
            )
            layers += [BatchRenormalization(scale, shift), linear(weight, bias), activation()]
        modules.append(nn.Sequential(*layers[:-1]))
    return nn.ModuleList(modules)


class DuelingModule(nn.Module):
    """A trunk, and two streams with a hidden layer each."""

    def __init__(self, config, params):
        super().__init__()
        activation = nn.Tanh if config.activation == "tanh" else nn.ReLU
        *trunk, last = layer_names(params)
        layers = []
        for name in trunk:
            layers += [layer_of(params, name), activation()]
        self.trunk = nn.Sequential(*layers)
        half, self.num_outputs = config.hidden_sizes[-1], getattr(config, "atoms", None) or 1
        self.value, self.advantage = (
            nn.Sequential(layer_of(params, last, columns), activation(), layer_of(params, stream))
            for stream, columns in (("value", slice(half)), ("advantage", slice(half, None)))
        )

    def forward(self, obs):
        hidden = self.trunk(obs)
        advantage = self.advantage(hidden).view(len(obs), -1, self.num_outputs)
        value = self.value(hidden)[:, None]
        return (value + advantage - advantage.mean(1, keepdim=True)).flatten(1)


def project(probs, reward, discount, atoms):
    """Return the projection of one distribution of returns, with a loop over its atoms."""
    projected = torch.zeros_like(probs)
    spacing = atoms[1] - atoms[0]
    for p, z in zip(probs, atoms, strict=True):
        position = (reward + discount * z).clamp(atoms[0], atoms[-1]) - atoms[0]
        lower = min(int(position / spacing), len(atoms) - 2)
        share = position / spacing - lower
        projected[lower] += p * (1 - share)
        projected[lower + 1] += p * share
    return projected


def centre_and_half(spec):
    """Return the centre and the half width of actions, which are learned in [−1, 1]."""
    low, high = torch.tensor(spec.low).double(), torch.tensor(spec.high).double()
    return (low + high) / 2, (high - low) / 2


def follow(target, module, tau):
    """Update the target: θ' ← (1 − τ) θ' + τ θ."""
    with torch.no_grad():
        for target_param, param in zip(target.parameters(), module.parameters(), strict=True):
            target_param.copy_((1 - tau) * target_param + tau * param)


def mean(values, weight):
    """Return E[w x] for weights of mean 1, or E[x]."""
    return values.mean() if weight is None else (weight * values).mean()


def to_float64(batch):
    """Return the batch in float64; integers stay unchanged."""
    return ReplayBatch(
        *[x.double() if x is not None and x.is_floating_point() else x for x in batch]
    )


# --- updates -------------------------------------------------------------------------------------


class CriticEnsemble:
    """Critics, their targets and their optimizer."""

    def __init__(self, config, params, learning_rate):
        self.modules = critic_modules(config, params)
        self.targets = copy.deepcopy(self.modules)
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=learning_rate)

    def values(self, modules, obs, action):
        inputs = torch.cat([obs, action], 1)
        return torch.stack([module(inputs)[:, 0] for module in modules])

    def minimum(self, modules, obs, action):
        return self.values(modules, obs, action).min(0).values

    def learn(self, obs, action, target, importance):
        inputs = torch.cat([obs, action], 1)
        values = [module(inputs)[:, 0] for module in self.modules]
        loss = sum((importance * (value - target) ** 2).mean() for value in values)
        self.step(loss)
        td_error = sum((value - target).abs() for value in values).detach() / len(values)
        q_value = sum(value.mean().item() for value in values) / len(values)
        metrics = {
            "critic_loss": loss.item(),
            "q_value": q_value,
            "td_error": td_error.mean().item(),
        }
        return metrics, td_error

    def step(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class SAC:
    """Haarnoja et al. 2018, with targets that move at each update of the critics."""

    def __init__(self, action_spec, policy, values, config):
        self.config = config
        self.policy = actor_module(config, policy)
        self.policy_optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=config.policy_learning_rate
        )
        self.critics = CriticEnsemble(config, values, config.critic_learning_rate)
        self.centre, self.half = centre_and_half(action_spec)
        self.target_entropy = config.target_entropy
        if self.target_entropy is None:
            self.target_entropy = -len(self.centre)
        self.log_alpha = torch.tensor(config.initial_alpha).double().log().requires_grad_()
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=config.critic_learning_rate)
        self.count, self.subsets = 0, []

    @property
    def alpha(self):
        return self.log_alpha.exp().item() if self.config.alpha is None else self.config.alpha

    def draw(self, obs, noise):
        mean, raw = self.policy(obs).chunk(2, 1)
        log_std = -5 + 3.5 * (torch.tanh(raw) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        before = mean + log_std.exp() * noise
        log_prob = normal.log_prob(before) - torch.log1p(-(torch.tanh(before) ** 2))
        return torch.tanh(before), log_prob.sum(1)

    def update(self, batch, draw_noise):
        batch, policy_metrics = to_float64(batch), []
        self.count += 1
        has_subset = getattr(self.config, "target_critics", None) is not None
        noise = draw_noise(self.config.num_critics) if has_subset else draw_noise()
        metrics, td_error = self.update_critics(batch, noise)
        follow(self.critics.targets, self.critics.modules, self.config.tau)
        if self.count % self.config.policy_frequency == 0:
            times = getattr(self.config, "policy_updates", None) or self.config.policy_frequency
            for _ in range(times):
                policy_metrics.append(self.update_policy(batch, draw_noise()))
        return metrics, policy_metrics, td_error

    def update_critics(self, batch, noise):
        size, targets = len(batch.reward), self.critics.targets
        if len(noise) > size:
            order = sorted(range(len(targets)), key=lambda k: noise[size + k, 0])
            self.subsets.append(order[: self.config.target_critics])
            targets = [targets[k] for k in self.subsets[-1]]
        with torch.no_grad():
            action, log_prob = self.draw(batch.next_obs, noise[:size])
            value = self.critics.minimum(targets, batch.next_obs, action)
            target = batch.reward + batch.discount * (value - self.alpha * log_prob)
        unit = (batch.action - self.centre) / self.half
        return self.critics.learn(batch.obs, unit, target, batch.importance)

    def policy_value(self, obs, action):
        values = self.critics.values(self.critics.modules, obs, action)
        return values.min(0).values if self.config.target_critics is None else values.mean(0)

    def update_policy(self, batch, noise):
        alpha = self.alpha
        action, log_prob = self.draw(batch.obs, noise)
        value = self.policy_value(batch.obs, action)
        loss = mean(alpha * log_prob - value, batch.weight)
        self.policy_optimizer.zero_grad()
        loss.backward()
        self.policy_optimizer.step()
        surplus = -(log_prob.detach() + self.target_entropy)
        alpha_loss = (self.log_alpha.exp() * surplus).mean()
        if self.config.alpha is None:
            self.alpha_optimizer.zero_grad()
            alpha_loss.backward()
            self.alpha_optimizer.step()
        return {
            "policy_loss": loss.item(),
            "alpha_loss": alpha * surplus.mean().item(),
            "alpha": alpha,
            "entropy": -log_prob.mean().item(),
        }


class TQC(SAC):
    """Kuznetsov et al. 2020: one target for all atoms of all critics, atom by atom."""

    def update_critics(self, batch, noise):
        config, critics = self.config, self.critics
        with torch.no_grad():
            action, log_prob = self.draw(batch.next_obs, noise)
            inputs = torch.cat([batch.next_obs, action], 1)
            pool = torch.cat([target(inputs) for target in critics.targets], 1).sort(1).values
            pool = pool[:, : pool.shape[1] - config.num_critics * config.num_dropped]
            future = pool - self.alpha * log_prob[:, None]
            target = batch.reward[:, None] + batch.discount[:, None] * future
        inputs = torch.cat([batch.obs, (batch.action - self.centre) / self.half], 1)
        atoms, loss = [module(inputs) for module in critics.modules], 0
        for values in atoms:
            rows = torch.zeros(len(inputs), dtype=torch.float64)
            for m in range(config.num_quantiles):
                level = (2 * m + 1) / (2 * config.num_quantiles)
                error = target - values[:, m : m + 1]
                huber = nn.functional.huber_loss(
                    values[:, m : m + 1].expand_as(target), target, reduction="none"
                )
                slope = torch.where(error < 0, 1 - level, level)
                rows = rows + (slope * huber).mean(1) / config.num_quantiles
            loss = loss + (batch.importance * rows).mean()
        critics.step(loss)
        mean_value = torch.stack(atoms).detach().mean((0, 2))
        td_error = (target.mean(1) - mean_value).abs()
        metrics = {
            "critic_loss": loss.item(),
            "q_value": mean_value.mean().item(),
            "td_error": td_error.mean().item(),
        }
        return metrics, td_error

    def policy_value(self, obs, action):
        inputs = torch.cat([obs, action], 1)
        return torch.cat([module(inputs) for module in self.critics.modules], 1).mean(1)


class CrossQ(SAC):
    """Bhatt et al. 2024, with separate modules and their modes of training and evaluation."""

    def __init__(self, action_spec, actor, critics, config):
        self.config, self.count = config, 0
        activation = nn.Tanh if config.activation == "tanh" else nn.ReLU
        (self.policy,) = normalized_modules("policy", actor, activation)
        self.critics = normalized_modules("critic", critics, nn.ReLU)
        adam = partial(torch.optim.Adam, betas=(0.5, 0.999))
        self.policy_optimizer = adam(self.policy.parameters(), lr=config.policy_learning_rate)
        self.optimizer = adam(self.critics.parameters(), lr=config.critic_learning_rate)
        self.centre, self.half = centre_and_half(action_spec)
        self.target_entropy = -len(self.centre)
        self.log_alpha = torch.tensor(config.initial_alpha).double().log().requires_grad_()
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=config.critic_learning_rate)
        self.layers = [
            x
            for module in (self.policy, self.critics)
            for x in module.modules()
            if isinstance(x, BatchRenormalization)
        ]

    def update(self, batch, draw_noise):
        batch, policy_metrics = to_float64(batch), []
        self.count += 1
        for layer in self.layers:
            layer.is_warm = self.count > self.config.batch_norm_updates
            layer.rate = self.config.statistics_rate
        # The critics.
        self.policy.eval()
        self.critics.train()
        with torch.no_grad():
            action, log_prob = self.draw(batch.next_obs, draw_noise())
        now = torch.cat([batch.obs, (batch.action - self.centre) / self.half], 1)
        inputs = torch.cat([now, torch.cat([batch.next_obs, action], 1)])
        outputs = torch.stack([module(inputs)[:, 0] for module in self.critics])
        values, next_values = outputs.chunk(2, 1)
        next_value = next_values.detach().min(0).values - self.alpha * log_prob
        error = values - (batch.reward + batch.discount * next_value)
        loss = (batch.importance * error**2).mean(1).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        td_error = error.detach().abs().mean(0)
        metrics = {
            "critic_loss": loss.item(),
            "q_value": values.mean().item(),
            "td_error": td_error.mean().item(),
        }
        # The policy.
        if self.count % self.config.policy_frequency == 0:
            self.policy.train()
            self.critics.eval()
            policy_metrics.append(self.update_policy(batch, draw_noise()))
            self.policy.eval()
        return metrics, policy_metrics, td_error

    def policy_value(self, obs, action):
        inputs = torch.cat([obs, action], 1)
        return torch.cat([module(inputs) for module in self.critics], 1).min(1).values


class DiscreteSAC:
    """Christodoulou 2019, with a loop over the actions, and targets that move at each update.

    Args:
        policy: parameters of the policy by name.
        critics: parameters by name of each critic.
        num_actions: A.
        config: the configuration.
    """

    def __init__(self, policy, critics, num_actions, config):
        self.config, self.num_actions = config, num_actions
        self.policy = actor_module(config, policy)
        self.policy_optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=config.policy_learning_rate
        )
        self.critics = nn.ModuleList(actor_module(config, params) for params in critics)
        self.targets = copy.deepcopy(self.critics)
        rate = config.critic_learning_rate
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=rate)
        self.log_alpha = torch.tensor(config.initial_alpha).double().log().requires_grad_()
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=rate)
        self.count = 0

    @property
    def alpha(self):
        fixed = self.config.alpha
        return self.log_alpha.exp().item() if fixed is None else fixed

    def expectation(self, probs, values):
        """Return the expected value of each row, one action after the other."""
        return sum(probs[:, a] * values[:, a] for a in range(self.num_actions))

    def minimum(self, modules, obs):
        return torch.stack([module(obs) for module in modules]).min(0).values

    def update(self, batch):
        config, batch = self.config, to_float64(batch)
        rows = torch.arange(len(batch.reward))
        self.count += 1
        with torch.no_grad():
            probs = torch.softmax(self.policy(batch.next_obs), 1)
            soft_values = self.minimum(self.targets, batch.next_obs) - self.alpha * probs.log()
            target = batch.reward + batch.discount * self.expectation(probs, soft_values)
        values = [module(batch.obs)[rows, batch.action] for module in self.critics]
        loss = sum((batch.importance * (value - target) ** 2).mean() for value in values)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        follow(self.targets, self.critics, config.tau)
        td_error = sum((value - target).abs() for value in values).detach() / len(values)
        metrics = {
            "critic_loss": loss.item(),
            "q_value": sum(value.mean().item() for value in values) / len(values),
            "td_error": td_error.mean().item(),
        }
        num_updates = 0 if self.count % config.policy_frequency else config.policy_frequency
        return metrics, [self.update_policy(batch) for _ in range(num_updates)], td_error

    def update_policy(self, batch):
        alpha = self.alpha
        with torch.no_grad():
            values = self.minimum(self.critics, batch.obs)
        probs = torch.softmax(self.policy(batch.obs), 1)
        loss = mean(self.expectation(probs, alpha * probs.log() - values), batch.weight)
        self.policy_optimizer.zero_grad()
        loss.backward()
        self.policy_optimizer.step()
        entropy = -self.expectation(probs, probs.log()).mean().item()
        surplus = entropy - self.config.target_entropy_share * math.log(self.num_actions)
        if self.config.alpha is None:
            self.alpha_optimizer.zero_grad()
            (self.log_alpha.exp() * surplus).backward()
            self.alpha_optimizer.step()
        return {
            "policy_loss": loss.item(),
            "alpha_loss": alpha * surplus,
            "alpha": alpha,
            "entropy": entropy,
        }


class TD3:
    """Fujimoto et al. 2018, algorithm 1."""

    def __init__(self, action_spec, policy, values, config):
        self.config = config
        self.policy = actor_module(config, policy)
        self.policy_target = copy.deepcopy(self.policy)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.learning_rate)
        self.critics = CriticEnsemble(config, values, config.learning_rate)
        self.centre, self.half = centre_and_half(action_spec)
        self.count = 0
        self.num_clipped = 0  # noise values that were clipped
        self.num_beyond = 0  # action values that were clipped

    def update(self, batch, draw_noise):
        config, batch = self.config, to_float64(batch)
        self.count += 1
        with torch.no_grad():
            noise = config.policy_noise * draw_noise()
            clipped = noise.clamp(-config.noise_clip, config.noise_clip)
            self.num_clipped += int((noise != clipped).sum())
            action = torch.tanh(self.policy_target(batch.next_obs)) + clipped
            self.num_beyond += int((action.abs() > 1).sum())
            action = action.clamp(-1, 1)
            value = self.critics.minimum(self.critics.targets, batch.next_obs, action)
            target = batch.reward + batch.discount * value
        unit = (batch.action - self.centre) / self.half
        metrics, td_error = self.critics.learn(batch.obs, unit, target, batch.importance)
        policy_metrics = []
        if self.count % config.policy_frequency == 0:
            action = torch.tanh(self.policy(batch.obs))
            value = self.critics.modules[0](torch.cat([batch.obs, action], 1))[:, 0]
            loss, policy_metrics = self.policy_loss(batch, action, value, unit)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            follow(self.policy_target, self.policy, config.tau)
            follow(self.critics.targets, self.critics.modules, config.tau)
            policy_metrics = [{"policy_loss": loss.item(), **policy_metrics}]
        return metrics, policy_metrics, td_error

    def policy_loss(self, batch, action, value, unit):
        return -mean(value, batch.weight), {}


class TD3BC(TD3):
    """Fujimoto & Gu 2021: TD3 whose policy also imitates the actions of the data."""

    def policy_loss(self, batch, action, value, unit):
        scale = self.config.q_weight / value.abs().mean().item()
        imitation = mean(((action - unit) ** 2).mean(1), batch.weight)
        loss = -scale * mean(value, batch.weight) + imitation
        return loss, {"imitation_loss": imitation.item()}


class DQN:
    """Mnih et al. 2015 and van Hasselt et al. 2016, with atoms Bellemare et al. 2017."""

    def __init__(self, params, config):
        self.config = config
        make = DuelingModule if config.dueling else actor_module
        self.network = make(config, params)
        self.target = copy.deepcopy(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        self.num_linear = 0  # errors beyond Huber's δ

    def update(self, batch, noise=(None, None, None)):
        """Make one update, with the noise of the target, of the best action and of the loss."""
        config, batch = self.config, to_float64(batch)
        rows = torch.arange(len(batch.reward))
        set_noise(self.target, noise[0])
        set_noise(self.network, noise[1])
        with torch.no_grad():
            next_outputs = self.target(batch.next_obs)
            chooser = self.network(batch.next_obs) if config.double else next_outputs
        set_noise(self.network, noise[2])
        outputs = self.network(batch.obs)
        if config.atoms is not None:
            every = next_outputs, chooser, outputs
            return self.step(*self.distribution_losses(batch, rows, *every))
        target = batch.reward + batch.discount * next_outputs[rows, chooser.argmax(1)]
        value = outputs[rows, batch.action]
        error = value - target
        losses = error**2
        if config.huber is not None:
            is_linear = error.abs() > config.huber
            self.num_linear += int(is_linear.sum())
            linear_part = config.huber * (error.abs() - config.huber / 2)
            losses = torch.where(is_linear, linear_part, error**2 / 2)
        return self.step(batch.importance * losses, value, error.abs())

    def distribution_losses(self, batch, rows, *every):
        """Return the weighted losses, values and divergences of the rows."""
        config = self.config
        atoms = torch.linspace(config.value_min, config.value_max, config.atoms).double()

        next_probs, chooser, probs = (
            torch.softmax(x.view(len(rows), -1, config.atoms), 2) for x in every
        )
        best = (chooser @ atoms).argmax(1)
        target = torch.stack(
            [
                project(next_probs[i, best[i]], batch.reward[i], batch.discount[i], atoms)
                for i in rows
            ]
        )
        chosen = probs[rows, batch.action]
        divergence = torch.nn.functional.kl_div(chosen.log(), target, reduction="none").sum(1)
        return batch.importance * divergence, chosen @ atoms, divergence

    def step(self, losses, value, error):
        """Make a step of the optimizer, and return metrics and errors."""
        config, loss = self.config, losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        bound = float("inf") if config.max_grad_norm is None else config.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), bound)
        self.optimizer.step()
        td_error = error.detach()
        metrics = {
            "loss": loss.item(),
            "q_value": value.mean().item(),
            "td_error": td_error.mean().item(),
            "grad_norm": norm.item(),
        }
        return metrics, td_error

    def move_target(self):
        follow(self.target, self.network, self.config.tau)


def means(rows):
    """Return the means of metrics by name, over all updates."""
    assert all(row.keys() == rows[0].keys() for row in rows)
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def assert_same_parameters(actual, expected):
    """Compare two modules after 20 updates, each of about 1e-3 per number.

    If a gradient is only rounding, Adam makes a full step of its sign, so a few may differ more.
    """
    actual, expected = actual.state_dict(), expected.state_dict()
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        difference = (actual[name] - tensor).abs()
        assert difference.mean() < 1e-4, (name, difference.mean())
        assert difference.max() < 2e-3, (name, difference.max())
