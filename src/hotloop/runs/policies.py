"""Files of several policies: their runs in the directory of a training, results of self-play."""

from __future__ import annotations

from pathlib import Path

from hotloop.errors import ConfigError

POLICIES = "policies"
"""Directory of these runs: `RUN/policies/NAME`."""
POOL = "pool"
"""Directory of the snapshots of a run in self-play."""
SELF_PLAY_FILE = "self_play.json"
"""File in a run directory with the ratings and results of self-play."""


def check_one_policy(path: Path) -> None:
    """Check that a run directory is not that of several policies.

    Raises:
        ConfigError: it is.
    """
    if runs := policy_runs(path):
        raise ConfigError(f"{path} has {len(runs)} policies: choose one of them, such as {runs[0]}")


def policy_runs(path: Path) -> list[Path]:
    """Return the run directories of several policies, none of a run with a single one."""
    return sorted(config.parent for config in (path / POLICIES).glob("*/config.json"))
