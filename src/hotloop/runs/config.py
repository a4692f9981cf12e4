"""What every algorithm's configuration must satisfy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from hotloop.errors import ConfigError


def check_fields(
    config: Any,
    *,
    counts: Sequence[str] = (),
    positive: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    fractions: Sequence[str] = (),
) -> None:
    """Refuse values that no run could use, before anything starts.

    `seed`, `hidden_sizes`, `activation` and `env_kwargs` are always checked; a field that is None
    is one that is switched off.

    Args:
        config: the configuration, a dataclass.
        counts: fields that are integers ≥ 1.
        positive: fields that are finite numbers > 0.
        not_negative: fields that are finite numbers ≥ 0.
        fractions: fields that are numbers in [0, 1].

    Raises:
        ConfigError: names the field, what was expected and what came.
    """

    def check(name: str, is_good: bool, expected: str) -> None:
        if not is_good:
            raise ConfigError(f"`{name}` must {expected}, got {getattr(config, name)!r}")

    for name in counts:
        value = getattr(config, name)
        check(name, _is_int(value) and value >= 1, "be a positive integer")
    for names, is_good, expected in (
        (positive, lambda x: x > 0, "be positive"),
        (not_negative, lambda x: x >= 0, "not be negative"),
        (fractions, lambda x: 0 <= x <= 1, "lie in [0, 1]"),
    ):
        for name in names:
            value = getattr(config, name)
            if value is not None:
                is_number = isinstance(value, (int, float)) and math.isfinite(value)
                check(name, is_number and is_good(value), f"{expected} and finite")
    check("seed", _is_int(config.seed) and 0 <= config.seed < 2**63, "be an integer in [0, 2⁶³)")
    sizes = config.hidden_sizes
    are_good = isinstance(sizes, (tuple, list)) and all(_is_int(x) and x >= 1 for x in sizes)
    check("hidden_sizes", are_good, "be positive integers")
    check("activation", config.activation in ("tanh", "relu"), "be 'tanh' or 'relu'")
    check("env_kwargs", _is_json_object(config.env_kwargs), "be a dict that JSON can hold")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_json_object(value: Any) -> bool:
    """What `config.json` could not hold could not be made again for evaluation."""
    try:
        return isinstance(value, dict) and json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False
