"""Plans of several trainings by one command: `--seeds 1-5 --vary learning_rate=1e-4,3e-4`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hotloop.errors import ConfigError, UnknownNameError, nearest, shortened
from hotloop.system.cores import available_cores

_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MOST, _DIGITS = 1_000, 19


@dataclass(frozen=True)
class Planned:
    """One training.

    Attributes:
        label: what stands before its lines.
        name: of its run directory.
        options: that make it this one.
    """

    label: str
    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All combinations of seeds and of values of some options.

    Attributes:
        seeds: of each combination.
        varied: options, and the values of each as they were written.
    """

    seeds: tuple[int, ...]
    varied: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def each(self) -> list[Planned]:
        """Return the trainings, seed by seed of one combination of values after the other."""
        planned: list[Planned] = []
        names = [name for name, _ in self.varied]
        for values in itertools.product(*(values for _, values in self.varied)):
            pairs = list(zip(names, values, strict=True))
            options = [x for name, value in pairs for x in _option(name, value)]
            words = [f"{name} {value}" for name, value in pairs]
            stem = "".join(f"{name}={value}__" for name, value in pairs)
            planned += [
                Planned(
                    ", ".join([*words, f"seed {seed}"]),
                    re.sub(r"[^\w.+=-]+", "-", f"{stem}seed_{seed}"),
                    (*options, f"--seed={seed}"),
                )
                for seed in self.seeds
            ]
        return planned

    def split(self, count: int) -> list[Plan]:
        """Return up to `count` plans about as large, which together are this one."""
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
        """Return the options of the command that are this plan."""
        args = [f"--seeds={','.join(map(str, self.seeds))}"]
        for name, values in self.varied:
            args.append(f"--vary={name}={';'.join(values)}" + (";" if len(values) == 1 else ""))
        return args


def _option(name: str, value: str) -> list[str]:
    """Return the arguments that give an option a value: of `64 64` two numbers."""
    flag, numbers = f"--{name.replace('_', '-')}", value.split()
    return [flag, *numbers] if len(numbers) > 1 else [f"{flag}={value}"]


def _parts(values: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Return up to `count` pieces, in order, none longer than another by more than one."""
    count = min(count, len(values))
    ends = [len(values) * k // count for k in range(count + 1)]
    return [values[start:end] for start, end in itertools.pairwise(ends)]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that `1-5` or `1,3,7-9` names.

    Raises:
        ConfigError: it names none, one twice, or too many.
    """
    example = "write `1-5`, or `1,3,7-9`"
    seeds: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"`--seeds` must be numbers and ranges, got '{text}': {example}")
        ends = [number.lstrip("0") or "0" for number in (match[1], match[2] or match[1])]
        if any(len(number) > _DIGITS or int(number) >= 2**63 for number in ends):
            raise ConfigError(
                f"`--seeds` must be below 2⁶³, got '{shortened(part, 50)}': {example}"
            )
        first, last = map(int, ends)
        if last < first:
            raise ConfigError(
                f"`--seeds` must name ranges from the smaller number to the larger, got '{part}' "
                f"in '{text}': {example}"
            )
        if len(seeds) + last - first >= _MOST:
            raise ConfigError(f"`--seeds` must be at most {_MOST:,}, got more in '{text}'")
        seeds += range(first, last + 1)
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ConfigError(f"`--seeds` names {seed} twice in '{text}': name each once")
    return tuple(seeds)


def parse_varied(
    texts: Sequence[str], config_class: type, given: Sequence[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the options that `learning_rate=1e-4,3e-4` names, and the values of each.

    Args:
        texts: one for each option; values with commas in them are parted by semicolons.
        config_class: whose options they are.
        given: the other arguments, which must not give the same.

    Raises:
        UnknownNameError: there is no such option.
        ConfigError: it names no values, one twice, or an option that is given too.
    """
    known = [field.name for field in fields(config_class)]
    taken = {arg.partition("=")[0].removeprefix("--").replace("-", "_") for arg in given}
    varied: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, has_values, listed = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        values = tuple(x.strip() for x in listed.split(";" if ";" in listed else ","))
        values = values[:-1] if values and not values[-1] and ";" in listed else values
        if not has_values or not all(values) or not values:
            raise ConfigError(
                f"`--vary` must be an option and its values, got '{text}': write "
                "`learning_rate=1e-4,3e-4`, or `learning_rate=linear:1e-3,0;3e-4`"
            )
        if name not in known:
            hint = nearest(name, known) or ": `hotloop train ALGORITHM --help` lists them"
            raise UnknownNameError(f"`--vary` must name an option, got '{name}'{hint}")
        if name in ("seed", "run_dir", "runs_dir"):
            raise ConfigError(f"`--vary` can't vary `{name}`: seeds are what `--seeds` is for")
        if name in taken or name in varied:
            raise ConfigError(f"`{name}` is given twice, got '{text}' too: leave one of them out")
        if len(set(values)) < len(values):
            raise ConfigError(f"`--vary` names a value twice in '{text}': name each once")
        varied[name] = values
    return tuple(varied.items())


def without_seed(args: Sequence[str]) -> list[str]:
    """Return arguments without `--seed` and its value, which a plan has."""
    kept: list[str] = []
    following = iter(args)
    for arg in following:
        if arg == "--seed":
            next(following, None)
        elif not arg.startswith("--seed="):
            kept.append(arg)
    return kept


def parse_jobs(text: str | None, config: Any) -> int:
    """Return how many processes run at once; by default one for each core that a training takes.

    Args:
        text: what was given; None for nothing.
        config: of the trainings.

    Raises:
        ConfigError: it is no number above 0.
    """
    if text is None:
        takes = available_cores()
        if isinstance(config.workers, int):
            takes = 1 + config.workers + (config.inference != "worker")
        return max(1, available_cores() // takes)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"`--jobs` must be how many processes run at once, got '{text}'")
    return int(text)
