"""APPO's update in float64: evaluation by the newest policy, V-trace, and the losses."""

from __future__ import annotations

import torch
from torch import nn

from tests.reference import advantages as reference

AGE = 3  # of the fragment, in iterations


def prepared(networks, fragment, config):
    """Return the rows of a fragment by name, (T·N, …), as float64 except for actions."""
    obs, next_obs = (torch.from_numpy(x).double() for x in (fragment.obs, fragment.next_obs))
    action = torch.from_numpy(fragment.action)
    with torch.no_grad():
        newest_log_prob = networks.distribution(obs).log_prob(action).numpy()
        value, next_value = networks.value(obs)[..., 0], networks.value(next_obs)[..., 0]
    value, next_value = value.numpy(), next_value.numpy()
    is_end = fragment.terminated | fragment.truncated
    next_value[is_end] = fragment.next_value[is_end]  # of the policy that acted
    rewards, flags = fragment.reward, (fragment.terminated, fragment.truncated)
    discounts = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
    if config.vtrace:
        bounds = {"max_rho": config.max_rho, "max_c": config.max_c}
        log_ratio = newest_log_prob - fragment.log_prob
        returns, advantages = reference.vtrace(
            rewards, value, next_value, *flags, log_ratio, **discounts, **bounds
        )
    else:
        value = fragment.value
        advantages = reference.gae(rewards, value, fragment.next_value, *flags, **discounts)
        returns = advantages + value
    fields = {
        "obs": fragment.obs,
        "log_prob": fragment.log_prob,
        "value": value,
        "advantages": advantages,
        "returns": returns,
        "newest_log_prob": newest_log_prob,
    }
    share = AGE**-config.proximal_power
    fields["proximal_log_prob"] = (1 - share) * newest_log_prob + share * fragment.log_prob
    rows = {name: torch.as_tensor(x).double().flatten(0, 1) for name, x in fields.items()}
    return rows | {"action": action.flatten(0, 1)}


def loss(networks, rows, config):
    """Return the loss of a minibatch, and its metrics."""
    distribution = networks.distribution(rows["obs"])
    log_prob, value = distribution.log_prob(rows["action"]), networks.value(rows["obs"])[:, 0]
    newest_ratio = (rows["newest_log_prob"] - rows["log_prob"]).exp()
    acting_log_prob, centre = rows["log_prob"], rows["proximal_log_prob"]
    importance = (centre - acting_log_prob).exp().clamp(max=config.max_importance)
    ratio = (log_prob - centre).exp()
    advantages = rows["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    low, high = 1 - config.clip_range, 1 + config.clip_range
    surrogate = torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
    squared = (value - rows["returns"]) ** 2
    if config.clip_value_loss:
        change = (value - rows["value"]).clamp(-config.clip_range, config.clip_range)
        squared = torch.max(squared, (rows["value"] + change - rows["returns"]) ** 2)
    total = (
        -(importance * surrogate).mean()
        + config.value_coef * squared.mean()
        - config.entropy_coef * distribution.entropy().mean()
    )
    metrics = {
        "effective_share": newest_ratio.sum().square()
        / (len(newest_ratio) * newest_ratio.square().sum()),
        "truncated_share": (newest_ratio > config.max_rho).double().mean(),
    }
    return total, metrics


def learn(networks, optimizer, rows, orders, config):
    """Run all epochs on one fragment."""
    size = config.minibatch_size
    for order in orders:
        for start in range(0, config.batch_size, size):
            indices = order[start : start + size]
            total, _ = loss(networks, {name: x[indices] for name, x in rows.items()}, config)
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(networks.parameters(), config.max_grad_norm)
            optimizer.step()
