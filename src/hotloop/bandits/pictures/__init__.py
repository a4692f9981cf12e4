"""Pictures of results. Bands and bars are 95 % confidence intervals over runs.

Every function writes one file, whole or not at all, and the suffix says which kind: .png, .svg or
.pdf.
"""

from __future__ import annotations

from hotloop.bandits.pictures.canvas import FORMATS, check_picture
from hotloop.bandits.pictures.curves import learning_curves, regret_curves
from hotloop.bandits.pictures.distributions import regret_boxes, reward_distributions
from hotloop.bandits.pictures.shares import arm_shares
from hotloop.bandits.pictures.studies import heat_map, parameter_study, power_of_two

__all__ = [
    "FORMATS",
    "arm_shares",
    "check_picture",
    "heat_map",
    "learning_curves",
    "parameter_study",
    "power_of_two",
    "regret_boxes",
    "regret_curves",
    "reward_distributions",
]
