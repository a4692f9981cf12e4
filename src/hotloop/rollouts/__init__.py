"""Where experience comes from: environments stepped by a published policy, fragment by fragment."""

from __future__ import annotations

from hotloop.rollouts.inline import InlineRollout, RolloutState, flatten_valid

__all__ = ["InlineRollout", "RolloutState", "flatten_valid"]
