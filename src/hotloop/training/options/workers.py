"""Options of the processes that step the environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal

from hotloop.base.memory import require_memory
from hotloop.errors import ConfigError
from hotloop.rollouts import NUM_SLOTS
from hotloop.rollouts.collector import VIEWS_BYTES
from hotloop.training.options.base import SET, Requirements, RequirementTable
from hotloop.training.options.constraints import (
    MAY_CHANGE,
    Count,
    JsonObject,
    Natural,
    Positive,
    Resources,
)
from hotloop.training.options.task import TaskOptions
from hotloop.types import transition_bytes

# Lower bound on a worker's memory, for any environment and network.
_WORKER_BYTES = 2**24

# Requirements of options that are for worker processes, for Ray and for its central inference.
WORKERS: Final[Requirements] = {"workers": SET, "backend": ("processes", "ray")}
_RAY: Final[Requirements] = {"backend": ("ray",)}
_CENTRAL: Final[Requirements] = {**_RAY, "inference": ("central",)}


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(TaskOptions):
    """Processes that step the environments."""

    workers: Natural | Literal["auto"] = 0
    """Processes that step the environments. 0: none, the learner's process does. auto: measured
    at the start. Raise it if the environments take most of the time."""
    envs_per_worker: Count | None = None
    """Environments of each worker, which sets N. None: `num_envs` divided evenly."""
    backend: Annotated[Literal["processes", "inline", "ray"], MAY_CHANGE] = "processes"
    """Where workers run. inline: in this process, one after another, with the same results as
    processes. ray: Ray actors, also on other machines."""
    ray_address: Annotated[str | None, MAY_CHANGE] = None
    """ray: address of a cluster, host:port or 'auto'. None: the address in `RAY_ADDRESS`, or start
    Ray on this machine, and stop it at the end."""
    worker_resources: Annotated[Resources, MAY_CHANGE] = field(default_factory=dict)
    """ray: resources of each worker as JSON. {}: one core, '{"num_cpus": 1}'."""
    workers_per_node: Annotated[Count | None, MAY_CHANGE] = None
    """ray: maximum number of workers on each node. None: spread over the nodes."""
    ray_runtime_env: Annotated[JsonObject, MAY_CHANGE] = field(default_factory=dict)
    """ray: runtime environment as JSON: '{"pip": ["hotloop[train]"], "working_dir": "."}'."""
    inference: Annotated[Literal["worker", "central", "auto"], MAY_CHANGE] = "worker"
    """Where the policy acts: in each worker, or central, in one process for all. auto: measured at
    the start."""
    inference_actors: Annotated[Count, MAY_CHANGE] = 1
    """ray: number of actors for central inference."""
    inference_resources: Annotated[Resources, MAY_CHANGE] = field(default_factory=dict)
    """ray: resources of each inference actor as JSON, '{"num_gpus": 0.5}'. {}: one core."""
    step_timeout_s: Annotated[Positive | None, MAY_CHANGE] = 300.0
    """Workers: time limit of a step or a reset, in seconds, after which the worker is replaced.
    None: no limit."""
    max_failures: Annotated[Natural, MAY_CHANGE] = 100
    """Workers: number of failed environments and dead workers to replace before the run fails."""

    requires: ClassVar[RequirementTable] = {
        "envs_per_worker": {"workers": SET},
        "inference": WORKERS,
        "step_timeout_s": WORKERS,
        "max_failures": WORKERS,
        **dict.fromkeys(
            ("ray_address", "worker_resources", "workers_per_node", "ray_runtime_env"), _RAY
        ),
        **dict.fromkeys(("inference_actors", "inference_resources"), _CENTRAL),
    }

    def check(self) -> None:
        """Check that environments divide evenly, workers fit into memory, and Ray's options fit."""
        if self.inference != "worker":
            self._check_inference()
        self._check_ray()
        if self.workers in (0, "auto"):
            if self.envs_per_worker is not None:  # `workers` 'auto' chooses this number, too
                raise ConfigError("`envs_per_worker` needs a number of `workers`: set it")
        elif self.total_envs < self.num_groups:
            raise ConfigError(
                f"{self.workers} workers need at least {self.num_groups} environments, got "
                f"`num_envs` = {self.total_envs}: set `num_envs` to {self.num_groups} or a "
                "multiple of it, or lower `workers`"
            )
        elif self.total_envs % self.num_groups:
            raise ConfigError(
                f"`num_envs` = {self.num_envs} can't be divided evenly among {self.workers} "
                f"workers: set `num_envs` to a multiple of {self.num_groups}, or `envs_per_worker`"
            )
        elif self.has_workers:
            require_memory(
                _WORKER_BYTES * self.num_groups,
                f"{self.num_groups:,} workers",
                "lower `workers`",
            )

    def _check_inference(self) -> None:
        """Check that the number of workers is known, and that Ray needs no measurement."""
        reason = ""
        if self.backend == "ray" and self.inference == "auto":
            reason = "workers on this machine, got `backend` 'ray': choose worker or central"
        elif self.workers == "auto":
            reason = (
                "a number of `workers`, got 'auto', which assumes that each worker acts for its "
                "own environments: set a number, such as 2"
            )
        if reason:
            raise ConfigError(f"`inference` '{self.inference}' needs {reason}")

    def _check_ray(self) -> None:
        """Check that Ray has a number of workers, and the resources of inference actors."""
        if isinstance(self.workers, int) and self.inference_actors > max(1, self.workers):
            raise ConfigError(
                f"`inference_actors` must not exceed `workers` = {self.workers}, got "
                f"{self.inference_actors}: lower it"
            )
        if self.backend != "ray":
            return
        if self.workers in (0, "auto"):
            raise ConfigError(
                f"`backend` 'ray' needs a number of `workers`, got {self.workers!r}: set it, such "
                "as 24"
            )
        if self.inference_resources.get("num_gpus", 0) > 1:
            raise ConfigError(
                "`num_gpus` of `inference_resources` must be at most 1, got "
                f"{self.inference_resources['num_gpus']:g}: lower it, and raise "
                "`inference_actors`"
            )

    @property
    def has_workers(self) -> bool:
        """Whether separate processes step the environments."""
        return self.workers != 0 and self.backend != "inline"

    @property
    def num_groups(self) -> int:
        """Return the number of environment groups, one for each worker."""
        return self.workers if isinstance(self.workers, int) and self.workers > 0 else 1

    @property
    def total_envs(self) -> int:
        """Return N, the number of environments over all workers."""
        num_envs = self.envs_per_worker
        return self.num_envs if num_envs is None else self.num_groups * num_envs

    def require_fragment_memory(self, num_steps: int, name: str) -> None:
        """Check that fragments of `num_steps`, set by the option `name`, fit into memory.

        Raises:
            ConfigError: they don't fit, even with the smallest possible observations.
        """
        num_envs = self.total_envs
        size = num_steps * (transition_bytes() * num_envs + VIEWS_BYTES * self.num_groups)
        envs = "num_envs" if self.envs_per_worker is None else "envs_per_worker"
        lower = [f"`{x}`" for x, count in ((envs, num_envs), (name, num_steps)) if count > 1]
        require_memory(
            size * (NUM_SLOTS if self.has_workers else 1),
            f"{num_envs:,} environment{'s' * (num_envs > 1)} × "
            f"{num_steps:,} step{'s' * (num_steps > 1)}",
            f"lower {' or '.join(lower)}",
        )
