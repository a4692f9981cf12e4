"""Metrics of continuous actions: the spread of the policy, and how many actions are clipped."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotloop.base.transfer import to_device
from hotloop.policies import Network
from hotloop.policies.heads import Hybrid
from hotloop.policies.heads.gaussian import LOG_STD, Gaussian
from hotloop.types import Array

_LARGE_STD = 100.0  # with bounds of ±1, 99 % of such actions are clipped


class ActionMetrics:
    """Metrics of the continuous actions of a diagonal Gaussian policy.

    - `policy_std`: mean standard deviation over the numbers of an action, before actions are scaled
      to distant bounds.
    - `clipped_actions`: share of the numbers outside the bounds, if any bound is finite.

    It warns once if the standard deviation explodes.
    """

    def __init__(self, network: Network) -> None:
        head, spec = network.head, network.action_spec
        self._first_number = 0  # the first continuous column
        if isinstance(head, Hybrid):
            head, spec, self._first_number = head.gaussian, head.gaussian.spec, head.num_components
        self._is_gaussian = isinstance(head, Gaussian)
        self._bounds: tuple[Array, Array] | None = None
        if self._is_gaussian and np.isfinite([*spec.low, *spec.high]).any():
            low, high = spec.bounds
            self._bounds = low.astype(np.float32), high.astype(np.float32)
        self._may_warn = True

    def __call__(self, fragments: Sequence[Any], params: Mapping[str, Array]) -> dict[str, float]:
        """Return the metrics of an iteration, or none for other policies.

        Args:
            fragments: the fragments of arrays or of tensors.
            params: the policy's parameters after the update.
        """
        if not self._is_gaussian:
            return {}
        log_std = params[LOG_STD].astype(np.float64)
        with np.errstate(over="ignore"):
            metrics = {"policy_std": float(np.exp(log_std).mean())}
        if metrics["policy_std"] > _LARGE_STD and self._may_warn:
            self._may_warn = False
            warnings.warn(
                f"the standard deviation of the policy's actions grew to "
                f"{metrics['policy_std']:.2g}, so they are all but random: lower `entropy_coef` or "
                "`learning_rate`, and see `clipped_actions` in metrics.jsonl",
                stacklevel=2,
            )
        if self._bounds is not None and fragments:
            rows = (fragment.valid_rows(fragment.action) for fragment in fragments)
            shares = [_outside_share(x[..., self._first_number :], *self._bounds) for x in rows]
            metrics["clipped_actions"] = float(np.mean(shares))
        return metrics


def _outside_share(action: Any, low: Array, high: Array) -> float:
    """Return the share of an array's or a tensor's numbers outside the bounds."""
    device = None if isinstance(action, np.ndarray) else action.device
    low, high = (to_device(bound, device) for bound in (low, high))
    is_outside = (action < low) | (action > high)
    return float(is_outside.sum()) / max(1, math.prod(is_outside.shape))
