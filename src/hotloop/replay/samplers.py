"""Samplers: the laws that batches are drawn by, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np

from hotloop.errors import CheckpointError, ConfigError
from hotloop.replay.native.handle import (
    KIND_RANKS,
    KIND_TREE,
    KIND_UNIFORM,
    MAX_WEIGHT,
    WEIGHT_GIVEN,
    WEIGHT_MAX,
)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _make_plain(settings: Any) -> None:
    """Make NumPy's numbers Python's, which can be saved, and see that switches are switches."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        if isinstance(value, np.generic):
            value = value.item()
            object.__setattr__(settings, one.name, value)
        if isinstance(one.default, bool) and not isinstance(value, bool):
            raise ConfigError(f"`{one.name}` must be True or False, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Every entry is as likely as any other."""

    replacement: bool = True
    """Whether an entry may be in a batch more than once."""

    weighted: ClassVar[bool] = False
    has_importance: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _make_plain(self)

    def in_handle(self) -> dict[str, float]:
        """What the handle holds of these settings."""
        return {"kind": KIND_UNIFORM, "replacement": self.replacement}


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Consecutive transitions of one episode, for networks that remember.

    What is drawn, with replacement and each as likely as any other, is the first transition to
    learn from. Before it come up to `burn_in` transitions that precede it in its episode: through
    these a network only brings what it remembers up to date. After it come those that follow in the
    episode, `length` with the first. Kapturowski et al. 2019, "Recurrent Experience Replay in
    Distributed Reinforcement Learning", section 3: stored state with burn-in.

    A batch is time-major: its fields are (T, B, *shape), T = burn_in + length. Each sequence begins
    in row 0, so all start from what the network remembered there; rows that are left over at the
    end repeat the last transition. Beside the fields there are

    - `mask`, bool, (T, B): the transitions to learn from; False in the burn-in and in what is left
      over;
    - `index`, int64, (T, B): numbers;
    - `memory`, (B, *shape), where a field has this name: what the network remembered before row 0.
    """

    length: int
    """How many transitions to learn from, at most: fewer where the episode ends before, or where
    what follows is not stored yet."""
    burn_in: int = 0
    """How many transitions come before them, at most: fewer near the episode's beginning, or where
    they were overwritten."""

    weighted: ClassVar[bool] = False
    has_importance: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _make_plain(self)
        for name, least in (("length", 1), ("burn_in", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"`{name}` must be a whole number from {least} on, got {value!r}")

    @property
    def steps(self) -> int:
        """T, how many rows a sequence has."""
        return self.burn_in + self.length

    def in_handle(self) -> dict[str, float]:
        """What the handle holds of these settings."""
        kind = {"kind": KIND_UNIFORM, "replacement": True}
        return {**kind, "steps": self.steps, "burn_in": self.burn_in}


@dataclass(frozen=True, kw_only=True)
class Proportional:
    """P(i) = (B_i + c) / Σ_j (B_j + c), for weights B that may be negative.

    With `shift="min"`, c = |min(min_j B_j, 0)| over the live entries, exactly: the least of
    negative weights is never drawn, as long as another one is greater. If all weights are equal to
    −c, a batch is drawn uniformly.
    """

    replacement: bool = True
    """Whether an entry may be in a batch more than once. Without replacement each draw is
    proportional among what was not drawn yet, as in NumPy's `choice(replace=False, p=…)`."""
    shift: float | Literal["min"] = "min"
    """c: `"min"`, or a number; a weight below −c then counts as −c."""
    strict: bool = False
    """Without replacement, where fewer entries have weight than the batch asks for: raise, in place
    of taking all of them and the rest uniformly."""

    weighted: ClassVar[bool] = True
    has_importance: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _make_plain(self)
        by_min = isinstance(self.shift, str) and self.shift == "min"
        if not by_min and not (_is_number(self.shift) and abs(float(self.shift)) <= MAX_WEIGHT):
            raise ConfigError(
                f"`shift` must be 'min' or a finite number, of at most {MAX_WEIGHT:g}, got "
                f"{self.shift!r}"
            )

    def in_handle(self) -> dict[str, float]:
        """What the handle holds of these settings."""
        by_min = self.shift == "min"
        return {
            "kind": KIND_TREE,
            "replacement": self.replacement,
            "shift_is_min": by_min,
            "shift": 0.0 if by_min else float(self.shift),
            "strict": self.strict,
            "weights": WEIGHT_GIVEN,
        }


@dataclass(frozen=True, kw_only=True)
class _Annealed:
    beta: float = 0.4
    """β of the importance weights at the first batch: 0 corrects nothing, 1 all."""
    beta_final: float = 1.0
    """β after `beta_samples` batches."""
    beta_samples: int | None = None
    """Over how many batches β goes, linearly, from `beta` to `beta_final`; None: it stays."""
    stratified: bool = False
    """Draw one entry from each of B parts of equal probability, in place of B independent ones."""
    normalize: Literal["buffer", "batch"] = "buffer"
    """Over what the importance weights' maximum, by which they are divided, is taken."""

    weighted: ClassVar[bool] = True
    has_importance: ClassVar[bool] = True

    def _check(self, alpha: float) -> None:
        for name, value in (
            ("alpha", alpha),
            ("beta", self.beta),
            ("beta_final", self.beta_final),
        ):
            if not (_is_number(value) and value >= 0):
                raise ConfigError(f"`{name}` must be a number from 0 on, got {value!r}")
        count = self.beta_samples
        if count is not None and not (type(count) is int and count >= 1):
            raise ConfigError(f"`beta_samples` must be a whole number from 1 on, got {count!r}")
        if self.normalize not in ("buffer", "batch"):
            raise ConfigError(f"`normalize` must be 'buffer' or 'batch', got '{self.normalize}'")

    def beta_after(self, num_samples: int) -> float:
        """β of the batch that is drawn after `num_samples` others."""
        if self.beta_samples is None:
            return self.beta
        done = min(num_samples / self.beta_samples, 1.0)
        return self.beta + (self.beta_final - self.beta) * done

    def _shared(self) -> dict[str, float]:
        return {
            "replacement": True,
            "stratified": self.stratified,
            "whole_buffer": self.normalize == "buffer",
            "priorities": True,
            "weights": WEIGHT_MAX,
        }


@dataclass(frozen=True, kw_only=True)
class Prioritized(_Annealed):
    """P(i) = (p_i + ε)^α / Σ_j (p_j + ε)^α, p_i being |TD error|.

    Schaul et al. 2016, arXiv:1511.05952, equation 1 and section 3.3, "proportional". A new entry
    weighs what the greatest live one does.
    """

    alpha: float = 0.6
    """How much priorities count: 0 is uniform."""
    epsilon: float = 1e-6
    """Added to every priority, so that none is 0."""

    def __post_init__(self) -> None:
        _make_plain(self)
        self._check(self.alpha)
        if not (_is_number(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"`epsilon` must be a positive number, got {self.epsilon!r}")

    def in_handle(self) -> dict[str, float]:
        """What the handle holds of these settings."""
        return {**self._shared(), "kind": KIND_TREE, "alpha": self.alpha, "epsilon": self.epsilon}


@dataclass(frozen=True, kw_only=True)
class RankBased(_Annealed):
    """P(i) = rank(i)^−α / Σ_r r^−α, rank 1 being the greatest priority.

    Schaul et al. 2016, arXiv:1511.05952, section 3.3. Of equal priorities the one in the lower slot
    of the ring comes first. A new entry's priority is the greatest one.
    """

    alpha: float = 0.7
    """How much ranks count: 0 is uniform."""
    beta: float = 0.5
    """β of the importance weights at the first batch: 0 corrects nothing, 1 all."""

    def __post_init__(self) -> None:
        _make_plain(self)
        self._check(self.alpha)

    def in_handle(self) -> dict[str, float]:
        """What the handle holds of these settings."""
        rest = {"kind": KIND_RANKS, "alpha": 1.0, "epsilon": 0.0, "rank_alpha": self.alpha}
        return {**self._shared(), **rest}


Sampler = Uniform | Sequences | Proportional | Prioritized | RankBased
"""How batches are drawn."""
_KINDS = {
    kind.__name__: kind for kind in (Uniform, Sequences, Proportional, Prioritized, RankBased)
}


def sampler_to_json(sampler: Sampler) -> dict[str, Any]:
    """As values that `json.dumps` takes."""
    return {"kind": type(sampler).__name__, **asdict(sampler)}


def sampler_from_json(values: dict[str, Any]) -> Sampler:
    """The sampler that `sampler_to_json` wrote.

    Raises:
        CheckpointError: it is of a kind, or has settings, that this version does not know.
    """
    settings = dict(values)
    try:
        return _KINDS[settings.pop("kind")](**settings)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"a sampler {values} is not known here: load the file with the version that wrote it"
        ) from error
