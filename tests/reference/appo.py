"""APPO's update written out in float64: what the newest policy says, V-trace, and the losses."""

from __future__ import annotations

import torch
from torch import nn

from tests.reference import advantages as reference

AGE = 3  # of what is learned from, in iterations


def prepared(networks, fragment, config):
    """Return the rows of a fragment by name, (T·N, …), as float64; actions as they are."""
    obs, next_obs = (torch.from_numpy(x).double() for x in (fragment.obs, fragment.next_obs))
    action = torch.from_numpy(fragment.action)
    with torch.no_grad():
        newest = networks.distribution(obs).log_prob(action).numpy()
        value, next_value = networks.value(obs)[..., 0], networks.value(next_obs)[..., 0]
    value, next_value = value.numpy(), next_value.numpy()
    ended = fragment.terminated | fragment.truncated
    next_value[ended] = fragment.next_value[ended]  # of the policy that acted
    rewards, flags = fragment.reward, (fragment.terminated, fragment.truncated)
    discounts = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
    if config.vtrace:
        bounds = {"max_rho": config.max_rho, "max_c": config.max_c}
        log_ratio = newest - fragment.log_prob
        returns, advantages = reference.vtrace(
            rewards, value, next_value, *flags, log_ratio, **discounts, **bounds
        )
    else:
        value = fragment.value
        advantages = reference.gae(rewards, value, fragment.next_value, *flags, **discounts)
        returns = advantages + value
    named = {
        "obs": fragment.obs,
        "log_prob": fragment.log_prob,
        "value": value,
        "advantages": advantages,
        "returns": returns,
        "newest_log_prob": newest,
    }
    share = AGE**-config.proximal_power
    named["proximal_log_prob"] = (1 - share) * newest + share * fragment.log_prob
    rows = {name: torch.as_tensor(x).double().flatten(0, 1) for name, x in named.items()}
    return rows | {"action": action.flatten(0, 1)}


def loss(networks, rows, config):
    """Return the loss of a minibatch, and what it is told of it."""
    distribution = networks.distribution(rows["obs"])
    log_prob, value = distribution.log_prob(rows["action"]), networks.value(rows["obs"])[:, 0]
    since = (rows["newest_log_prob"] - rows["log_prob"]).exp()
    acted, centre = rows["log_prob"], rows["proximal_log_prob"]
    importance = (centre - acted).exp().clamp(max=config.max_importance)
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
    told = {
        "effective_share": since.sum().square() / (len(since) * since.square().sum()),
        "truncated_share": (since > config.max_rho).double().mean(),
    }
    return total, told


def learn(networks, optimizer, rows, orders, config):
    """All epochs on one fragment."""
    size = config.minibatch_size
    for order in orders:
        for start in range(0, config.batch_size, size):
            some = order[start : start + size]
            total, _ = loss(networks, {name: x[some] for name, x in rows.items()}, config)
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(networks.parameters(), config.max_grad_norm)
            optimizer.step()
