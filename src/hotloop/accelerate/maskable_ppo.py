"""MaskablePPO of sb3-contrib with hotloop's update and acting."""

from __future__ import annotations

import sb3_contrib

from hotloop.accelerate.on_policy import OnPolicyModel
from hotloop.accelerate.ppo import ClippedPolicyModel


class MaskablePPO(ClippedPolicyModel, sb3_contrib.MaskablePPO):  # pyright: ignore
    """`sb3_contrib.MaskablePPO` with hotloop's update and acting."""

    _fields = (*OnPolicyModel._fields, "action_masks")
