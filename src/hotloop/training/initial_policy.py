"""Start of a new run from the weights and the statistics of another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.errors import ConfigError
from hotloop.learner import Learner, Normalizer
from hotloop.learner.state import load_arrays
from hotloop.policies import Network
from hotloop.runs import Checkpoint, RunDirectory
from hotloop.runs.hub import is_hub_address
from hotloop.runs.policies import check_one_policy
from hotloop.training.options import AlgorithmOptions, NetworkOptions
from hotloop.training.resume import network_difference
from hotloop.training.trained_policy import split_run_path


@dataclass(frozen=True)
class InitialPolicy:
    """A checkpoint of another run, whose learned state a new run starts from.

    Only arrays and their description are read from that run, so it need not be trusted.

    Attributes:
        path: the value of `init_from`.
        checkpoint: the checkpoint.
    """

    path: str
    checkpoint: Checkpoint

    def load(self, network: Network, learner: Learner, normalizer: Normalizer) -> None:
        """Load networks, optimizer and the statistics of observations.

        Raises:
            ConfigError: the run has other spaces or another network.
            CheckpointError: the state of the learner differs, as with another algorithm.
        """
        difference = network_difference(network, self.checkpoint)
        if difference is not None:
            part, stored, value = difference
            is_space = part in ("obs_spec", "action_spec")
            raise ConfigError(
                f"`init_from` must name a run with the same spaces and network, got {self.path} "
                f"with {'other spaces' if is_space else 'another network'}: its {part} has "
                f"{_differing(stored, value)}, the new run's {_differing(value, stored)}; change "
                f"the {'environment' if is_space else 'network'}, or leave `init_from` out"
            )
        arrays = self.checkpoint.arrays()
        advice = (
            f"{self.path} was trained with another algorithm or other options of it, so use those, "
            "or leave `init_from` out"
        )
        load_arrays(learner.state, arrays, advice=advice)
        if "normalizer.obs.mean" in arrays:
            normalizer.load_obs(arrays)


def open_initial_policy(config: AlgorithmOptions) -> InitialPolicy | None:
    """Return the checkpoint that `init_from` names, or None without that option.

    Raises:
        RunDirectoryError, CheckpointError: there is no such run, or its checkpoint is damaged.
        ConfigError: the run normalizes observations, and the new one does not, or vice versa.
    """
    if not isinstance(config, NetworkOptions) or config.init_from is None:
        return None
    if is_hub_address(config.init_from):
        raise ConfigError(
            f"`init_from` must name a run on this machine, got {config.init_from}: a published "
            "policy lacks the state of the learner, from which a training continues"
        )
    folder, name = split_run_path(Path(config.init_from))
    run = RunDirectory.open(folder)
    check_one_policy(folder)
    is_normalized = bool(run.config["config"].get("normalize_obs", False))
    if is_normalized != config.normalize_obs:
        raise ConfigError(
            f"`init_from` needs `normalize_obs` {is_normalized}, as in {folder}, got "
            f"{config.normalize_obs}: its networks expect such observations"
        )
    return InitialPolicy(config.init_from, run.checkpoints.load(name or "last"))


def _differing(value: Any, other: Any) -> str:
    """Return as text the entries of a description that differ from another one's."""
    if not (isinstance(value, Mapping) and isinstance(other, Mapping)):
        return repr(value)
    names = [name for name, item in value.items() if other.get(name) != item]
    return ", ".join(f"{name} {value[name]!r}" for name in names if name != "layout") or "layout"
