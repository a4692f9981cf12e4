"""Samplers: the distributions that batches are drawn from."""

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


def _normalize_settings(settings: Any) -> None:
    """Convert NumPy scalars to Python numbers, which JSON supports, and check bools."""
    for option in fields(settings):
        value = getattr(settings, option.name)
        if isinstance(value, np.generic):
            value = value.item()
            object.__setattr__(settings, option.name, value)
        if isinstance(option.default, bool) and not isinstance(value, bool):
            raise ConfigError(f"`{option.name}` must be True or False, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Uniform sampling: all entries are equally likely."""

    replacement: bool = True
    """Whether an entry may be in a batch more than once."""

    weighted: ClassVar[bool] = False
    has_importance: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _normalize_settings(self)

    def handle_settings(self) -> dict[str, float]:
        """Return the settings by field of the handle."""
        return {"kind": KIND_UNIFORM, "replacement": self.replacement}


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Sequences of consecutive transitions of one episode, for recurrent networks.

    The sampler draws the first transition to learn from, uniformly and with replacement. Up to
    `burn_in` transitions of the same episode precede it: they only update the network's hidden
    state. The transitions that follow in the episode complete it to `length` transitions to learn
    from. Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning", section 3: stored state with burn-in.

    A batch is time-major: its fields are (T, B, *shape), T = burn_in + length. Each sequence starts
    in row 0, from the hidden state stored there. Unused rows at the end repeat the last transition.
    In addition to the fields, a batch has

    - `mask`, bool, (T, B): the transitions to learn from, False in the burn-in and in unused rows,
    - `index`, int64, (T, B): entry numbers,
    - `memory`, (B, *shape), if a field has this name: the hidden state before row 0.
    """

    length: int
    """Maximum number of transitions to learn from. Fewer if the episode ends earlier, or if later
    transitions are not stored yet."""
    burn_in: int = 0
    """Maximum number of transitions before them. Fewer near the start of an episode, or if
    transitions were overwritten."""

    weighted: ClassVar[bool] = False
    has_importance: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _normalize_settings(self)
        for name, least in (("length", 1), ("burn_in", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"`{name}` must be a whole number from {least} on, got {value!r}")

    @property
    def steps(self) -> int:
        """T, number of rows per sequence."""
        return self.burn_in + self.length

    def handle_settings(self) -> dict[str, float]:
        """Return the settings by field of the handle."""
        kind = {"kind": KIND_UNIFORM, "replacement": True}
        return {**kind, "steps": self.steps, "burn_in": self.burn_in}


@dataclass(frozen=True, kw_only=True)
class Proportional:
    """Proportional sampling: P(i) = (B_i + c) / Σ_j (B_j + c), for weights B that may be negative.

    With `shift="min"`, c = |min(min_j B_j, 0)| exactly, over the stored entries. The entry with the
    least negative weight is then never drawn if another weight is greater. If all weights equal −c,
    a batch is drawn uniformly.
    """

    replacement: bool = True
    """Whether an entry may be in a batch more than once. Without replacement, each draw is
    proportional among the entries not drawn yet, as in NumPy's `choice(replace=False, p=…)`."""
    shift: float | Literal["min"] = "min"
    """c: `"min"` or a number. With a number, weights below −c count as −c."""
    strict: bool = False
    """Whether to raise if, without replacement, fewer entries have weight than the batch needs. If
    False, the batch has all of these entries and is filled uniformly."""

    weighted: ClassVar[bool] = True
    has_importance: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _normalize_settings(self)
        is_min = isinstance(self.shift, str) and self.shift == "min"
        if not is_min and not (_is_number(self.shift) and abs(float(self.shift)) <= MAX_WEIGHT):
            raise ConfigError(
                f"`shift` must be 'min' or a finite number, of at most {MAX_WEIGHT:g}, got "
                f"{self.shift!r}"
            )

    def handle_settings(self) -> dict[str, float]:
        """Return the settings by field of the handle."""
        is_min = self.shift == "min"
        return {
            "kind": KIND_TREE,
            "replacement": self.replacement,
            "shift_is_min": is_min,
            "shift": 0.0 if is_min else float(self.shift),
            "strict": self.strict,
            "weight_rule": WEIGHT_GIVEN,
        }


@dataclass(frozen=True, kw_only=True)
class _AnnealedSampler:
    """The settings that samplers with importance weights share."""

    beta: float = 0.4
    """β of the importance weights at the first batch: 0 is no correction, 1 a full correction."""
    beta_final: float = 1.0
    """β after `beta_samples` batches."""
    beta_samples: int | None = None
    """Number of batches in which β changes linearly to `beta_final`; None: β is constant."""
    stratified: bool = False
    """Whether to draw one entry from each of B strata of equal probability."""
    normalize: Literal["buffer", "batch"] = "buffer"
    """Whether importance weights are divided by the maximum over the buffer or over the batch."""

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
        if self.beta_samples is None:
            return self.beta
        progress = min(num_samples / self.beta_samples, 1.0)
        return self.beta + (self.beta_final - self.beta) * progress

    def _common_settings(self) -> dict[str, float]:
        return {
            "replacement": True,
            "stratified": self.stratified,
            "whole_buffer": self.normalize == "buffer",
            "has_priorities": True,
            "weight_rule": WEIGHT_MAX,
        }


@dataclass(frozen=True, kw_only=True)
class Prioritized(_AnnealedSampler):
    """Prioritized sampling: P(i) = (p_i + ε)^α / Σ_j (p_j + ε)^α with p_i = |TD error|.

    Schaul et al. 2016, arXiv:1511.05952, equation 1 and section 3.3, "proportional". A new entry
    has the greatest weight of all stored entries.
    """

    alpha: float = 0.6
    """Exponent of the priorities: 0 is uniform sampling."""
    epsilon: float = 1e-6
    """ε, added to every priority so that none is 0."""

    def __post_init__(self) -> None:
        _normalize_settings(self)
        self._check(self.alpha)
        if not (_is_number(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"`epsilon` must be a positive number, got {self.epsilon!r}")

    def handle_settings(self) -> dict[str, float]:
        """Return the settings by field of the handle."""
        return {
            **self._common_settings(),
            "kind": KIND_TREE,
            "alpha": self.alpha,
            "epsilon": self.epsilon,
        }


@dataclass(frozen=True, kw_only=True)
class RankBased(_AnnealedSampler):
    """Rank-based sampling: P(i) = rank(i)^−α / Σ_r r^−α, rank 1 being the greatest priority.

    Schaul et al. 2016, arXiv:1511.05952, section 3.3. Among equal priorities, the lower slot of the
    ring comes first. A new entry has the greatest priority of all stored entries.
    """

    alpha: float = 0.7
    """Exponent of the ranks: 0 is uniform sampling."""
    beta: float = 0.5
    """β of the importance weights at the first batch: 0 is no correction, 1 a full correction."""

    def __post_init__(self) -> None:
        _normalize_settings(self)
        self._check(self.alpha)

    def handle_settings(self) -> dict[str, float]:
        """Return the settings by field of the handle."""
        settings = {"kind": KIND_RANKS, "alpha": 1.0, "epsilon": 0.0, "rank_alpha": self.alpha}
        return {**self._common_settings(), **settings}


Sampler = Uniform | Sequences | Proportional | Prioritized | RankBased
"""Any sampler."""
_KINDS = {
    kind.__name__: kind for kind in (Uniform, Sequences, Proportional, Prioritized, RankBased)
}


def sampler_to_json(sampler: Sampler) -> dict[str, Any]:
    """Return a sampler as a dictionary for `json.dumps`."""
    return {"kind": type(sampler).__name__, **asdict(sampler)}


def sampler_from_json(values: dict[str, Any]) -> Sampler:
    """Return the sampler that `sampler_to_json` saved.

    Raises:
        CheckpointError: this version does not support its kind or its settings.
    """
    settings = dict(values)
    try:
        return _KINDS[settings.pop("kind")](**settings)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"sampler {values} is not supported: load the file with the version that wrote it"
        ) from error
