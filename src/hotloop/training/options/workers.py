"""Options of the processes that step the environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from hotloop.errors import ConfigError
from hotloop.rollouts import NUM_SLOTS
from hotloop.system.memory import need_memory
from hotloop.training.options.base import Options
from hotloop.training.options.constraints import (
    MAY_CHANGE,
    Count,
    JsonObject,
    Natural,
    Positive,
)

# Lower bounds on memory, whatever the environment and the network are.
_TRANSITION_BYTES = 29  # in a fragment, of an observation of one byte
_STEP_BYTES = 1_024  # views of a fragment's rows, of each group of environments
_WORKER_BYTES = 2**24


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    """Processes that step the environments."""

    workers: Natural | Literal["auto"] = 0
    """Processes that step the environments; 0: the learner's own. auto: measured, then chosen."""
    envs_per_worker: Count | None = None
    """Environments of each worker, which makes N; None: `num_envs` are shared out evenly."""
    backend: Annotated[Literal["processes", "inline", "ray"], MAY_CHANGE] = "processes"
    """Where workers run. inline: here, one after another, with the same results as processes. ray:
    as actors of Ray, on other machines too."""
    ray_address: Annotated[str | None, MAY_CHANGE] = None
    """ray: of a cluster, host:port or 'auto'; None: Ray is started on this machine, and ended."""
    worker_resources: Annotated[JsonObject, MAY_CHANGE] = field(default_factory=dict)
    """ray: of each worker, as JSON; {}: one core, '{"num_cpus": 1}'."""
    workers_per_node: Annotated[Count | None, MAY_CHANGE] = None
    """ray: workers of each node at most; None: they are spread over the nodes."""
    ray_runtime_env: Annotated[JsonObject, MAY_CHANGE] = field(default_factory=dict)
    """ray: what workers run in, as JSON: '{"pip": ["hotloop[train]"], "working_dir": "."}'."""
    inference: Annotated[Literal["worker", "central", "auto"], MAY_CHANGE] = "worker"
    """Who acts: each worker for its own environments; or central, one process for all of them.
    auto: measured, then chosen."""
    inference_actors: Annotated[Count, MAY_CHANGE] = 1
    """ray: actors that compute the network where inference is central."""
    inference_resources: Annotated[JsonObject, MAY_CHANGE] = field(default_factory=dict)
    """ray: of each inference actor, as JSON, '{"num_gpus": 0.5}'; {}: one core."""
    step_timeout_s: Annotated[Positive | None, MAY_CHANGE] = 300.0
    """Workers: seconds that a step or a reset may take before the worker is replaced; None: any."""
    max_failures: Annotated[Natural, MAY_CHANGE] = 100
    """Workers: environments that fail and workers that die are replaced so often in a run."""

    def check(self) -> None:
        """Refuse environments that can't be shared out evenly, and more workers than fit."""
        if self.inference != "worker":
            self._check_inference()
        self._check_ray()
        if self.workers in (0, "auto"):
            if self.envs_per_worker is not None:
                raise ConfigError("`envs_per_worker` needs `workers`: say how many there are")
        elif self.total_envs % self.num_groups:
            raise ConfigError(
                f"`num_envs` = {self.num_envs} can't be shared out evenly among {self.workers} "
                "workers: set `envs_per_worker`"
            )
        elif self.has_workers:
            need_memory(
                _WORKER_BYTES * self.num_groups,
                f"{self.num_groups:,} workers",
                "lower `workers`",
            )

    def _check_inference(self) -> None:
        """Refuse a choice where there are no processes, or nobody has said how many."""
        reason = ""
        if self.workers == 0:
            reason = "workers of their own, got `workers` 0: set `workers` too"
        elif self.backend == "inline":
            reason = "workers of their own, got `backend` 'inline': leave one of both out"
        elif self.backend == "ray" and self.inference == "auto":
            reason = "workers of this machine, got `backend` 'ray': choose worker or central"
        elif self.workers == "auto":
            reason = (
                "a number of `workers`, got 'auto', which forecasts workers that act by "
                "themselves: set it, such as 2"
            )
        if reason:
            raise ConfigError(f"`inference` '{self.inference}' needs {reason}")

    def _check_ray(self) -> None:
        """Refuse Ray's options without Ray, and resources that are no numbers."""
        is_central = self.backend == "ray" and self.inference == "central"
        if not is_central and (self.inference_actors != 1 or self.inference_resources):
            raise ConfigError(
                "`inference_actors` and `inference_resources` are for `backend` 'ray' with "
                f"`inference` 'central', got '{self.backend}' with '{self.inference}': set both, "
                "or leave them at 1 and {}"
            )
        if isinstance(self.workers, int) and self.inference_actors > max(1, self.workers):
            raise ConfigError(
                f"{self.inference_actors} `inference_actors` for {self.workers} `workers`: some "
                "would have nothing to do, lower the former"
            )
        if self.backend != "ray":
            for name in (
                *("ray_address", "worker_resources", "workers_per_node"),
                "ray_runtime_env",
            ):
                if getattr(self, name):
                    raise ConfigError(
                        f"`{name}` is for `backend` 'ray', got '{self.backend}': set it, or leave "
                        f"`{name}` out"
                    )
            return
        if self.workers in (0, "auto"):
            raise ConfigError(
                f"`backend` 'ray' needs a number of `workers`, got {self.workers!r}: set it, such "
                "as 24"
            )
        for of in ("worker_resources", "inference_resources"):
            for name, amount in getattr(self, of).items():
                if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                    raise ConfigError(
                        f"`{of}` are numbers that are not negative, got {amount!r} of `{name}`: "
                        "pass '{\"num_cpus\": 1}'"
                    )
        if self.inference_resources.get("num_gpus", 0) > 1:
            raise ConfigError(
                "an inference actor computes on one GPU, got `num_gpus` "
                f"{self.inference_resources['num_gpus']:g}: ask for 1 or less, and raise "
                "`inference_actors`"
            )

    @property
    def has_workers(self) -> bool:
        """Whether environments are stepped in processes of their own."""
        return self.workers != 0 and self.backend != "inline"

    @property
    def num_groups(self) -> int:
        """Groups in which environments are acted for: one for each worker."""
        return self.workers if isinstance(self.workers, int) and self.workers > 0 else 1

    @property
    def total_envs(self) -> int:
        """N, environments over all workers."""
        each = self.envs_per_worker
        return self.num_envs if each is None else self.num_groups * each

    def need_fragments(self, num_steps: int, name: str) -> None:
        """Refuse fragments that don't fit into memory, whatever the environment.

        Args:
            num_steps: T.
            name: of the option that it comes from.

        Raises:
            ConfigError: they don't.
        """
        num_envs = self.total_envs
        size = num_steps * (_TRANSITION_BYTES * num_envs + _STEP_BYTES * self.num_groups)
        envs = "num_envs" if self.envs_per_worker is None else "envs_per_worker"
        lower = [f"`{x}`" for x, count in ((envs, num_envs), (name, num_steps)) if count > 1]
        need_memory(
            size * (NUM_SLOTS if self.has_workers else 1),
            f"{num_envs:,} environment{'s' * (num_envs > 1)} × "
            f"{num_steps:,} step{'s' * (num_steps > 1)}",
            f"lower {' or '.join(lower)}",
        )
