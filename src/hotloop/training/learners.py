"""The learner of a run, with its hyper-parameters and its normalizer, from a declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hotloop.errors import ConfigError
from hotloop.learner import Learner, Normalizer, UpdateRule
from hotloop.learner.normalizers import as_clip
from hotloop.policies import Network, ObsScale
from hotloop.policies.forward import LearnedNetwork
from hotloop.training.options import AlgorithmOptions, AnyConfig, MemoryOptions, Options

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm

_NORMALIZED_BOUND = 10.0  # standard deviations, as in Stable-Baselines3's `VecNormalize`


def make_learner(
    algorithm: Algorithm[AnyConfig],
    config: AnyConfig,
    nets: Any,
    rules: list[UpdateRule],
    *,
    device: torch.device,
    stream: int,
    num_batches: int,
    batch_size: int,
    overlap: bool = False,
) -> Learner:
    """Return the learner, which owns the state.

    Args:
        algorithm: the declaration.
        config: the configuration.
        nets: the networks from `networks`.
        rules: the updates.
        device: the device of the state.
        stream: the number of the random stream, combined with the run's seed.
        num_batches: the approximate number of batches in the run.
        batch_size: B.
        overlap: see `Learner`.

    Raises:
        ConfigError: the declaration does not fit its configuration or its state.
    """
    memory = config.memory if isinstance(config, MemoryOptions) else None
    if memory is not None and not policy_network(nets).network.memory_size:
        raise ConfigError(
            f"the networks of '{algorithm.name}' are not recurrent, got `memory` '{memory}': pass "
            "`memory=config.memory` to their constructor, or leave the option out"
        )
    state = algorithm.init(nets, config)
    if not isinstance(getattr(state, algorithm.acting, None), torch.Tensor):
        raise ConfigError(
            f"the state of the algorithm '{algorithm.name}' must have a tensor "
            f"`{algorithm.acting}` with the acting network's parameters: name that field in "
            "`acting`"
        )
    is_class = isinstance(algorithm.hyper, type)
    hyper = hyper_of(algorithm.hyper, config) if is_class else algorithm.hyper(config, nets)
    return Learner(
        state,
        hyper,
        rules,
        network=policy_network(nets),
        acting=algorithm.acting,
        device=device,
        seed=(config.seed, stream),
        execution=config.execution,
        num_batches=num_batches,
        batch_size=batch_size,
        overlap=overlap,
    )


def hyper_of(kind: Any, config: Options) -> Any:
    """Return hyper-parameters with the values of the options of the same names.

    None, which disables an option, becomes 0.

    Raises:
        ConfigError: the configuration lacks an option.
    """
    values: dict[str, Any] = {}
    for name in kind._fields:
        if not hasattr(config, name):
            raise ConfigError(
                f"`{name}` of {kind.__module__}'s {kind.__name__} is not an option of its Config: "
                "add the option, or set `hyper` to a function that returns the whole tuple"
            )
        value = config.value_of(name)
        values[name] = 0.0 if value is None else value
    return kind(**values)


def make_normalizer(
    config: AlgorithmOptions,
    nets: Any,
    num_envs: int,
    *,
    gamma: float,
    normalize_reward: bool = False,
    device: torch.device | None = None,
) -> Normalizer:
    """Return a normalizer of observations and rewards.

    Args:
        config: the options.
        nets: the learned networks.
        num_envs: N.
        gamma: γ.
        normalize_reward: whether rewards are scaled by running statistics.
        device: device of fragments of tensors. None: they are arrays.

    Raises:
        ConfigError: these observations can't be normalized.
    """
    network = policy_network(nets).network
    obs_spec = network.obs_spec
    if obs_spec.is_packed and (config.normalize_obs or _obs_bound(config) is not None):
        raise ConfigError(
            "`normalize_obs` and `clip_obs` need purely numeric observations, and these also hold "
            "images: leave them out, or normalize in a wrapper of the environment"
        )
    return Normalizer(
        obs_spec.shape,
        num_envs,
        normalize_obs=config.normalize_obs,
        normalize_reward=normalize_reward,
        clip_obs=_obs_bound(config),
        fixed_scale=_fixed_scale(config, network),
        clip_reward=config.clip_reward,
        gamma=gamma,
        device=device,
    )


def _obs_bound(config: AlgorithmOptions) -> float | None:
    """Return the bound on the magnitude of observations, or None."""
    if config.clip_obs == "auto":
        return _NORMALIZED_BOUND if config.normalize_obs else None
    return config.clip_obs


def _fixed_scale(config: AlgorithmOptions, network: Network) -> ObsScale | None:
    """Return the scale of observations that are not normalized, or None if they stay unchanged.

    Perceptrons take bytes scaled to 0 … 1 by the bounds of their space, and so do all encoders if
    the row is float32. Otherwise encoders of images scale bytes themselves. A user's network
    receives bytes unchanged.
    """
    spec, bound = network.obs_spec, _obs_bound(config)
    is_flat = network.encoder == "flatten"
    is_unscaled = network.module is None and (is_flat or spec.dtype == "float32")
    byte_scale = spec.byte_scale() if is_unscaled and not spec.is_packed else None
    if byte_scale is None and bound is None:
        return None
    if byte_scale is None:
        byte_scale = np.zeros(spec.shape, np.float32), np.ones(spec.shape, np.float32)
    return ObsScale(*byte_scale, as_clip(bound))


def policy_network(nets: Any) -> LearnedNetwork:
    """Return the acting network among the learned networks."""
    return getattr(nets, "policy", nets)
