"""The runs of several policies that were trained together, in the directory of their training."""

from __future__ import annotations

from pathlib import Path

POLICIES = "policies"
"""Directory of these runs: `RUN/policies/NAME`."""


def policy_runs(path: Path) -> list[Path]:
    """Return the run directories of several policies, none of a run with a single one."""
    return sorted(config.parent for config in (path / POLICIES).glob("*/config.json"))
