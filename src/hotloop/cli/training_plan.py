"""Plans of several trainings in one command: `--seeds 1-5 --vary learning_rate=1e-4,3e-4`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hotloop.base.cores import available_cores
from hotloop.errors import ConfigError, UnknownNameError, nearest, shortened

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MAX_SEEDS, _MAX_DIGITS = 1_000, 19


@dataclass(frozen=True)
class PlannedTraining:
    """One training of a plan.

    Attributes:
        label: Prefix of its output lines.
        name: Name of its run directory.
        options: Command-line arguments that set its seed and varied options.
    """

    label: str
    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class TrainingPlan:
    """All combinations of seeds and of values of some options.

    Attributes:
        seeds: Seeds of each combination.
        varied: Options with their values, as written on the command line.
    """

    seeds: tuple[int, ...]
    varied: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def trainings(self) -> list[PlannedTraining]:
        """Return the trainings, grouped by combination of values."""
        trainings: list[PlannedTraining] = []
        names = [name for name, _ in self.varied]
        for values in itertools.product(*(values for _, values in self.varied)):
            pairs = list(zip(names, values, strict=True))
            options = [arg for name, value in pairs for arg in _option_args(name, value)]
            words = [f"{name} {value}" for name, value in pairs]
            stem = "".join(f"{name}={value}__" for name, value in pairs)
            trainings += [
                PlannedTraining(
                    ", ".join([*words, f"seed {seed}"]),
                    re.sub(r"[^\w.+=-]+", "-", f"{stem}seed_{seed}"),
                    (*options, f"--seed={seed}"),
                )
                for seed in self.seeds
            ]
        return trainings

    def split(self, count: int) -> list[TrainingPlan]:
        """Split into up to `count` plans of about equal size."""
        if len(self.seeds) >= count or not self.varied:
            return [replace(self, seeds=part) for part in _parts(self.seeds, count)]
        longest = max(range(len(self.varied)), key=lambda k: len(self.varied[k][1]))
        name, values = self.varied[longest]
        return [
            replace(
                self,
                varied=(*self.varied[:longest], (name, part), *self.varied[longest + 1 :]),
            )
            for part in _parts(values, count)
        ]

    def arguments(self) -> list[str]:
        """Return the command-line arguments for this plan."""
        args = [f"--seeds={','.join(map(str, self.seeds))}"]
        for name, values in self.varied:
            args.append(f"--vary={name}={';'.join(values)}" + (";" if len(values) == 1 else ""))
        return args


def _option_args(name: str, value: str) -> list[str]:
    """Return the arguments that set an option. `64 64` becomes two numbers."""
    flag, numbers = f"--{name.replace('_', '-')}", value.split()
    return [flag, *numbers] if len(numbers) > 1 else [f"{flag}={value}"]


def _parts(values: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Split into up to `count` parts, in order, whose lengths differ by at most one."""
    count = min(count, len(values))
    ends = [len(values) * k // count for k in range(count + 1)]
    return [values[start:end] for start, end in itertools.pairwise(ends)]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds such as `1-5` or `1,3,7-9`.

    Raises:
        ConfigError: The text is malformed, or has a duplicate or too many seeds.
    """
    example = "write `1-5`, or `1,3,7-9`"
    seeds: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
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
        if len(seeds) + last - first >= _MAX_SEEDS:
            raise ConfigError(f"`--seeds` must be at most {_MAX_SEEDS:,}, got more in '{text}'")
        seeds += range(first, last + 1)
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ConfigError(f"`--seeds` has {seed} twice in '{text}': write each seed once")
    return tuple(seeds)


def parse_varied(
    texts: Sequence[str], config_class: type, other_args: Sequence[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Parse options to vary, such as `learning_rate=1e-4,3e-4`.

    Args:
        texts: One text per option. Semicolons separate values that contain commas.
        config_class: The configuration class that has the options.
        other_args: The other arguments, which must not set the same options.

    Raises:
        UnknownNameError: An option does not exist.
        ConfigError: An option has no values, the same value twice, or a fixed value as well.
    """
    known = [field.name for field in fields(config_class)]
    given_names = {arg.partition("=")[0].removeprefix("--").replace("-", "_") for arg in other_args}
    varied: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, has_values, value_list = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        values = tuple(x.strip() for x in value_list.split(";" if ";" in value_list else ","))
        values = values[:-1] if values and not values[-1] and ";" in value_list else values
        if not has_values or not all(values) or not values:
            raise ConfigError(
                f"`--vary` must be an option and its values, got '{text}': write "
                "`learning_rate=1e-4,3e-4`, or `learning_rate=linear:1e-3,0;3e-4`"
            )
        if name not in known:
            hint = nearest(name, known) or ": `hotloop train ALGORITHM --help` lists them"
            raise UnknownNameError(f"`--vary` must name an option, got '{name}'{hint}")
        if name in ("seed", "run_dir", "runs_dir"):
            raise ConfigError(f"`--vary` can't vary `{name}`: use `--seeds` for seeds")
        if name in given_names or name in varied:
            raise ConfigError(f"`{name}` is set twice, also by '{text}': remove one of them")
        if len(set(values)) < len(values):
            raise ConfigError(f"`--vary` has a value twice in '{text}': write each value once")
        varied[name] = values
    return tuple(varied.items())


def without_seed(args: Sequence[str]) -> list[str]:
    """Return the arguments without `--seed` and its value."""
    remaining: list[str] = []
    following = iter(args)
    for arg in following:
        if arg == "--seed":
            next(following, None)
        elif not arg.startswith("--seed="):
            remaining.append(arg)
    return remaining


def parse_jobs(text: str | None, config: Any) -> int:
    """Return the number of parallel processes. By default, each training has the cores it needs.

    Args:
        text: The value of `--jobs`, or None.
        config: The configuration of the trainings.

    Raises:
        ConfigError: The value is not a positive number.
    """
    if text is None:
        cores_per_training = available_cores()
        if isinstance(config.workers, int):
            cores_per_training = 1 + config.workers + (config.inference != "worker")
        return max(1, available_cores() // cores_per_training)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"`--jobs` must be a positive number of processes, got '{text}'")
    return int(text)
