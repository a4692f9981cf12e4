"""The configurations of several policies, from that of their training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from hotloop.base.registries import ALGORITHM_FINDERS
from hotloop.errors import ConfigError
from hotloop.ops.schedules import as_schedule
from hotloop.training.algorithm import Algorithm
from hotloop.training.assignment import named_policies
from hotloop.training.off_policy import OffPolicy
from hotloop.training.options import (
    MaskOptions,
    OnPolicyOptions,
    ReplayOptions,
    RunOptions,
    StopOptions,
)
from hotloop.training.options.constraints import scheduled_options
from hotloop.training.options.policies import PolicyOptions

PoliciesConfig = OnPolicyOptions | ReplayOptions
"""A configuration that may have several policies."""


def policy_algorithms(
    algorithm: Algorithm[Any], config: PoliciesConfig, names: Iterable[str]
) -> dict[str, Algorithm[Any]]:
    """Return the algorithm of each policy by name.

    Args:
        algorithm: the algorithm of policies without one of their own.
        config: the configuration of all policies.
        names: the policies.

    Raises:
        UnknownNameError: there is no such algorithm.
        ConfigError: an algorithm learns offline, or takes other steps than the others.
    """
    assert config.policies is not None
    named = named_policies(config.policies)
    algorithms: dict[str, Algorithm[Any]] = {}
    for name in names:
        algorithms[name] = algorithm
        if named.get(name):
            algorithms[name] = next(find(named[name]) for find in ALGORITHM_FINDERS)
        other = algorithms[name]
        is_offline = isinstance(other, OffPolicy) and other.is_offline
        if is_offline or not issubclass(other.config, OnPolicyOptions | ReplayOptions):
            raise ConfigError(
                f"several policies learn from their games, got {other.name}, which takes no steps: "
                "choose another algorithm"
            )
        if other.config is not algorithm.config and not isinstance(config, OnPolicyOptions):
            raise ConfigError(
                f"policies of different algorithms take the steps of an on-policy one, got "
                f"{algorithm.name} with {other.name} for '{name}': train ppo, and name "
                f"{algorithm.name} in `policies`"
            )
    return algorithms


def check_one_algorithm(algorithm: Algorithm[Any], config: PoliciesConfig) -> None:
    """Raise ConfigError unless all policies have the same on-policy algorithm, to copy them."""
    names = {algorithm.name, *filter(None, named_policies(config.policies or "").values())}
    if len(names) > 1 or not isinstance(config, OnPolicyOptions):
        raise ConfigError(
            "a population of several policies needs one on-policy algorithm, since copied "
            f"policies have no replay buffers, got {', '.join(sorted(names))}: train ppo"
        )


def policy_configs(
    config: PoliciesConfig, algorithms: Mapping[str, Algorithm[Any]], shares: Mapping[str, int]
) -> dict[str, PoliciesConfig]:
    """Return the configuration of each policy by name, without its run directory.

    Each has the share of its agents in all steps. Its seed is its own, or policies with the same
    spaces would act alike. Only the environments, which all policies share, have the training's
    seed. Intervals are multiples of the number of agents, so that all policies save and evaluate in
    the same iterations.

    Args:
        config: the configuration of all policies. A policy of another algorithm than the training's
            has its options of the games, the process and the iterations. Its other options are the
            algorithm's defaults.
        algorithms: the algorithm of each policy.
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
    configs: dict[str, PoliciesConfig] = {}
    for number, (name, num_own) in enumerate(shares.items()):

        def share(count: int, num_own: int = num_own) -> int:
            return math.ceil(count / num_agents) * num_own

        interval = config.eval_interval
        kind = algorithms[name].config
        intervals = {"checkpoint_interval": share(config.checkpoint_interval)}
        if isinstance(config, ReplayOptions):
            intervals["report_interval"] = share(config.report_interval)
        elif issubclass(kind, ReplayOptions):  # an iteration of one round, as on-policy
            intervals["report_interval"] = share(config.num_steps * config.total_envs)
        # The rules that stop a run look at the first policy.
        rules = {} if name == leader else {x.name: x.default for x in fields(StopOptions)}
        options = {
            **_base_options(config, algorithms[name], name),
            **rules,
            **_own_options(config.policy_options.get(name, {}), kind, name),
            "policy_options": {},
            "seed": int(np.random.SeedSequence((config.seed, number)).generate_state(1)[0]),
            "num_envs": share(config.total_envs),
            "envs_per_worker": None,
            "total_timesteps": share(config.total_timesteps),
            **intervals,
            # A kill may come between the saves of two policies.
            "keep_checkpoints": max(1, config.keep_checkpoints),
            "eval_interval": None if interval is None else share(interval),
        }
        try:
            configs[name] = kind(**options)
        except ConfigError as error:  # an option of one policy, or a share that is too small
            raise ConfigError(f"policy '{name}' ({algorithms[name].name}): {error}") from error
    return configs


# Options of the games, the process and the iterations. All policies share them.
_SHARED = {
    *("num_steps", "train_frequency", "fragment_steps", "report_interval"),
    *("schedule", "overlap", "precision"),
}.union(x.name for group in (RunOptions, MaskOptions, PolicyOptions) for x in fields(group))


def _base_options(config: PoliciesConfig, algorithm: Algorithm[Any], name: str) -> dict[str, Any]:
    """Return the options of the training that a policy has."""
    kind = algorithm.config
    values = {x.name: config.value_of(x.name) for x in fields(config)}
    if kind is type(config):
        return values
    known = {x.name for x in fields(kind)}
    if values.get("action_masks") and "action_masks" not in known:
        raise ConfigError(
            f"`action_masks` are for all policies, and {algorithm.name} of '{name}' has none: "
            "choose another algorithm, or leave them out"
        )
    excluded = {"schedule", "overlap"}  # their meaning depends on the algorithm
    options = {x: values[x] for x in known & values.keys() & _SHARED - excluded}
    if isinstance(config, OnPolicyOptions) and issubclass(kind, ReplayOptions):
        options["train_frequency"] = config.num_steps
    return options


def _own_options(options: Any, kind: type[PoliciesConfig], name: str) -> dict[str, Any]:
    """Return the options of a single policy, checked and converted from JSON."""
    known = [x.name for x in fields(kind) if x.name not in _SHARED]
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
    scheduled = scheduled_options(kind)
    values: dict[str, Any] = {}
    for option, value in options.items():
        if option in scheduled and isinstance(value, str):
            values[option] = as_schedule(value)
        else:
            values[option] = tuple(value) if isinstance(value, list) else value
    return values
