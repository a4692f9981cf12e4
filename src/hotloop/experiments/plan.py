"""The plan of many trainings: seeds × points of a search space, and how they run."""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hotloop.base.cores import available_cores
from hotloop.errors import ConfigError, shortened

METRICS = {
    "return": "mean return of the last 100 training episodes",
    "evaluation": "mean return of the last evaluation, which needs `--eval-interval`",
}
BACKENDS = ("processes", "ray")
# Each training sets these options itself.
_OWN_OPTIONS = ("seed", "run_dir", "runs_dir")
_SEED_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MAX_SEEDS, _MAX_DIGITS = 1_000, 19


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan of many trainings, which the file of results stores.

    Attributes:
        algorithm: name of the algorithm, for `hotloop.algorithms.find`.
        config: options of all trainings as JSON values. Points of the space replace some of them.
        space: option → its space as text, or a list of its values. Empty: one trial with the base
            options.
        seeds: seeds of each trial.
        sampler, sampler_seed: name and seed of the sampler.
        metric: a key of `METRICS`.
        trials: number of trials. None: all points of a grid, or as many as `hours` allows.
        hours: time limit after which no run starts, or None.
        jobs: number of processes. None: as many as have room on the cores.
        lanes: number of runs that a process trains in one update. None: the faster number.
        pruner: name of the pruner.
        generations: number of generations of a population, None for other samplers.
        backend: `processes` or `ray`.
        ray_address: address of a Ray cluster. None: start a local one.
        ray_runtime_env: environment of the processes on Ray, see Ray's `runtime_env`, or None.
        trial_resources: resources of a trial on Ray, which replace the default, or None.
        runs_per_update: number of runs that share a compiled update, to decide about compiling.

    Raises:
        ConfigError: a number is out of range, or the metric or the backend is unknown.
    """

    algorithm: str
    config: dict[str, Any]
    space: dict[str, Any]
    seeds: tuple[int, ...] = (1,)
    sampler: str = "grid"
    sampler_seed: int = 0
    metric: str = "return"
    trials: int | None = None
    hours: float | None = None
    jobs: int | None = None
    lanes: int | None = 1
    pruner: str = "none"
    generations: int | None = None
    backend: str = "processes"
    ray_address: str | None = None
    ray_runtime_env: dict[str, Any] | None = None
    trial_resources: dict[str, Any] | None = None
    runs_per_update: int = 1

    def __post_init__(self) -> None:
        for name in ("trials", "hours", "jobs", "lanes", "runs_per_update"):
            number = getattr(self, name)
            check_positive(name, number)
            if hasattr(number, "item"):  # NumPy's
                object.__setattr__(self, name, number.item())
        if not 0 <= self.sampler_seed < 2**31:  # NumPy's and Optuna's generators take no others
            raise ConfigError(
                f"`--sampler-seed` must be from 0 to 2³¹ − 1, got {self.sampler_seed}"
            )
        if self.generations is not None and self.generations < 2:
            raise ConfigError(f"`--generations` must be 2 or more, got {self.generations}")
        if not self.seeds:
            raise ConfigError("a plan needs at least one seed, got none")
        if self.metric not in METRICS:
            raise ConfigError(f"`--metric` must be {' or '.join(METRICS)}, got '{self.metric}'")
        if self.metric == "evaluation" and not self.config.get("eval_interval"):
            raise ConfigError("`--metric evaluation` needs `--eval-interval`")
        if self.backend not in BACKENDS:
            raise ConfigError(f"`--backend` must be {' or '.join(BACKENDS)}, got '{self.backend}'")
        if not isinstance(self.config.get("total_timesteps"), int):
            raise ConfigError("a plan needs the option `total_timesteps`, a number of steps")

    @property
    def steps(self) -> int:
        """Number of steps of a training."""
        return self.config["total_timesteps"]

    @property
    def fixed_options(self) -> dict[str, Any]:
        """Options of all trials as JSON values, without seed, steps and directories."""
        free = (*self.space, *_OWN_OPTIONS, "total_timesteps")
        return {name: value for name, value in self.config.items() if name not in free}

    @property
    def key(self) -> str:
        """A text that is equal for plans that may share a file of results."""
        names = ["algorithm", "space", "sampler", "sampler_seed", "metric"]
        if self.sampler == "pbt":  # members of a population depend on each other
            names += ["trials", "seeds", "generations"]
        content = {name: getattr(self, name) for name in names}
        return json.dumps({**content, "config": self.fixed_options}, sort_keys=True)

    def make_config(self) -> Any:
        """Return the configuration of all trainings. This imports the algorithm.

        Raises:
            ConfigError, UnknownNameError: an option is unknown or invalid.
        """
        from hotloop.algorithms import find
        from hotloop.training.options import from_stored

        return from_stored(find(self.algorithm).config, self.config)


def plan_options(config: Any) -> dict[str, Any]:
    """Return a configuration as a plan stores it."""
    from hotloop.training.options import to_json

    return {name: value for name, value in to_json(config).items() if name not in _OWN_OPTIONS}


def parse_seeds(seeds: str | int | Iterable[int]) -> tuple[int, ...]:
    """Return seeds from a number, several, or a text such as `1-5` or `1,3,7-9`.

    Raises:
        ConfigError: the text is malformed, or has a duplicate or too many seeds.
    """
    text = seeds if isinstance(seeds, str) else None
    if text is None:
        text = str(seeds) if isinstance(seeds, int) else ",".join(map(str, seeds))
    example = "write `1-5`, or `1,3,7-9`"
    parsed: list[int] = []
    for part in text.split(","):
        match = _SEED_RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"`--seeds` must be numbers and ranges, got '{text}': {example}")
        ends = [number.lstrip("0") or "0" for number in (match[1], match[2] or match[1])]
        if any(len(number) > _MAX_DIGITS or int(number) >= 2**63 for number in ends):
            raise ConfigError(
                f"`--seeds` must be below 2⁶³, got '{shortened(part, 50)}': {example}"
            )
        first, last = map(int, ends)
        if last < first:
            raise ConfigError(
                f"`--seeds` must name ranges from the smaller number to the larger, got '{part}' "
                f"in '{text}': {example}"
            )
        if len(parsed) + last - first >= _MAX_SEEDS:
            raise ConfigError(f"`--seeds` must be at most {_MAX_SEEDS:,}, got more in '{text}'")
        parsed += range(first, last + 1)
    for seed in parsed:
        if parsed.count(seed) > 1:
            raise ConfigError(f"`--seeds` has {seed} twice in '{text}': write each seed once")
    return tuple(parsed)


def check_positive(name: str, number: Any) -> None:
    """Check that a number of a plan is None or positive.

    Raises:
        ConfigError: it is not.
    """
    is_number = issubclass(type(number), numbers.Real) and type(number) is not bool
    if number is not None and not (is_number and number > 0):
        raise ConfigError(f"`--{name}` must be a positive number, got {number!r}")


def default_jobs(config: Any) -> int:
    """Return the number of trainings for whose workers the cores have room."""
    if not isinstance(config.workers, int):
        return 1
    return max(1, available_cores() // (1 + config.workers + (config.inference != "worker")))
