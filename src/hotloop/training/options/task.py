"""Options of the environment, the length of a run, and the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from hotloop.errors import ConfigError
from hotloop.training.options.base import Options
from hotloop.training.options.constraints import (
    MAY_CHANGE,
    Count,
    Device,
    Environment,
    JsonObject,
    Natural,
    Seed,
)

# With 512 threads torch starts 1,024, whose stacks take 9 GiB of addresses. Some thousand more
# crash it. The bound is the same on all machines, since a run may resume with fewer cores.
_MAX_THREADS = 512


@dataclass(frozen=True, kw_only=True)
class TaskOptions(Options):
    """The environment, the length of the run, and the machine."""

    env_id: Environment = "CartPole-v1"
    """Gymnasium id, `module:Id`, `envpool:Id`, `pettingzoo:module`, or `module:factory`; from
    Python also a class or function that makes the environment. On the device, for ppo:
    `hotloop:CartPole`, `gymnax:Id`, `brax:name`, `playground:name`."""
    env_kwargs: JsonObject = field(default_factory=dict)
    """Arguments of the environment, as JSON on the command line: '{"g": 1.62}'."""
    total_timesteps: Annotated[Count, MAY_CHANGE] = 200_000
    """Transitions to collect over all environments, rounded up to whole iterations."""
    seed: Seed = 1
    """Seed of environments, networks, actions and minibatches. Equal seeds give equal weights."""
    num_envs: Count = 8
    """N, environments that are stepped together. Raise it if updates are noisy or acting slow."""
    torch_threads: Count | Literal["auto"] = 1
    """Threads of the update. auto: up to four while cores are free. Raise it for large networks.
    Tiny networks are slower with two threads than with one."""
    device: Annotated[Device, MAY_CHANGE] = "cpu"
    """Device of the updates: cpu, cuda, cuda:1, …; auto: a GPU if torch finds one."""
    execution: Literal["auto", "eager", "compile", "cudagraph", "compile+cudagraph"] = "auto"
    """How updates run. eager: operation by operation. compile: several times as fast, after a
    compilation once on each machine. cudagraph: as one CUDA graph on a GPU. auto: cudagraph on a
    GPU, and compile in addition in long runs. On the CPU compile, if the updates are compiled
    already or the run is long enough to gain from it."""
    gpu_window_ms: Annotated[Natural, MAY_CHANGE] = 0
    """Milliseconds of each recording of the GPU by torch's profiler, started 3, 10, 30, 100, … s
    into the run, for `hotloop report`. 0: none."""

    def check(self) -> None:
        """Check the number of threads, and that GPU windows have a valid length and a GPU."""
        if self.gpu_window_ms and not 20 <= self.gpu_window_ms <= 10_000:
            raise ConfigError(
                "`gpu_window_ms` must be 0 or between 20 and 10,000 milliseconds, got "
                f"{self.gpu_window_ms:,}: 250 is usual"
            )
        if self.gpu_window_ms and self.device == "cpu":
            raise ConfigError(
                f"`gpu_window_ms` {self.gpu_window_ms} needs a GPU, got `device` 'cpu': set "
                "`device` to cuda, or leave `gpu_window_ms` out"
            )
        if self.torch_threads != "auto" and self.torch_threads > _MAX_THREADS:
            raise ConfigError(
                f"`torch_threads` must be at most {_MAX_THREADS:,}, got {self.torch_threads:,}: "
                "more threads than cores only wait for each other"
            )
