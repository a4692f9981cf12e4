"""Plots of bandit results. Bands and bars are 95 % confidence intervals over runs.

Every function writes one file, `path`, atomically. Its suffix selects the format: .png, .svg or
.pdf. The default `title` is the environment with the numbers of runs and steps.

Raises:
    ConfigError: there is no result, results lack what the plot shows, or the suffix is none of
        `FORMATS`.
    MissingExtraError: matplotlib is not installed.
    OutputError: `path` can't be written.
"""

from __future__ import annotations

from hotloop.bandits.plots.curves import learning_curves, regret_curves
from hotloop.bandits.plots.distributions import regret_boxes, reward_distributions
from hotloop.bandits.plots.parameters import heat_map, parameter_study, power_of_two_text
from hotloop.bandits.plots.pull_shares import arm_shares
from hotloop.base.figures import FORMATS, check_plot_path

__all__ = [
    "FORMATS",
    "arm_shares",
    "check_plot_path",
    "heat_map",
    "learning_curves",
    "parameter_study",
    "power_of_two_text",
    "regret_boxes",
    "regret_curves",
    "reward_distributions",
]
