"""The configurations of several policies, from that of their training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.ops.schedules import as_schedule
from hotloop.training.options import MaskOptions, OnPolicyOptions, RunOptions, StopOptions
from hotloop.training.options.constraints import scheduled_options
from hotloop.training.options.policies import PolicyOptions


def policy_configs(
    config: OnPolicyOptions, shares: Mapping[str, int]
) -> dict[str, OnPolicyOptions]:
    """Return the configuration of each policy by name, without its run directory.

    Each has the share of its agents in all steps. Its seed is its own, or policies with the same
    spaces would act alike. Only the environments, which all policies share, have the training's
    seed. Intervals are multiples of the number of agents, so that all policies save and evaluate in
    the same iterations.

    Args:
        config: the configuration of all policies.
        shares: the number of agents of each policy.

    Raises:
        ConfigError: `policy_options` name another policy, or an option that all policies share, or
            have an invalid value.
    """
    for name in config.policy_options:
        if name not in shares:
            raise ConfigError(
                f"`policy_options` must name policies, {', '.join(shares)}, got '{name}'"
            )
    num_agents, leader = sum(shares.values()), next(iter(shares))
    configs: dict[str, OnPolicyOptions] = {}
    for number, (name, num_own) in enumerate(shares.items()):

        def share(count: int, num_own: int = num_own) -> int:
            return math.ceil(count / num_agents) * num_own

        interval = config.eval_interval
        # The rules that stop a run look at the first policy.
        rules = {} if name == leader else {x.name: x.default for x in fields(StopOptions)}
        configs[name] = dataclasses.replace(
            config,
            **rules,
            **_own_options(config, name),
            policy_options={},
            seed=int(np.random.SeedSequence((config.seed, number)).generate_state(1)[0]),
            num_envs=share(config.num_envs),
            total_timesteps=share(config.total_timesteps),
            checkpoint_interval=share(config.checkpoint_interval),
            # A kill may come between the saves of two policies.
            keep_checkpoints=max(1, config.keep_checkpoints),
            eval_interval=None if interval is None else share(interval),
        )
    return configs


# Options of the games, the process and the iterations. All policies share them.
_SHARED = {"num_steps", "schedule", "overlap", "precision"}.union(
    x.name for group in (RunOptions, MaskOptions, PolicyOptions) for x in fields(group)
)


def _own_options(config: OnPolicyOptions, name: str) -> dict[str, Any]:
    """Return the options of a single policy, checked and converted from JSON."""
    options = config.policy_options.get(name, {})
    known = [x.name for x in fields(config) if x.name not in _SHARED]
    problem = "" if isinstance(options, dict) else repr(options)
    for option in () if problem else options:
        if option not in known:
            problem = f"`{option}`"
            break
    if problem:
        raise ConfigError(
            f"`policy_options` of '{name}' must be options that policies need not share, got "
            f"{problem}: choose from {', '.join(known)}"
        )
    scheduled = scheduled_options(type(config))
    return {
        option: as_schedule(value)
        if option in scheduled and isinstance(value, str)
        else tuple(value)
        if isinstance(value, list)
        else value
        for option, value in options.items()
    }
