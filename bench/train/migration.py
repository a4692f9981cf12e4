"""Tables of learning curves beside those of the libraries that users come from."""

from __future__ import annotations

import statistics
from typing import Any

from bench import storage
from bench.markdown import table

_NAMES = {
    "tianshou": "Tianshou",
    "sample_factory": "Sample Factory",
    "rllib": "RLlib",
    "pufferlib": "pufferlib-core",
}
_PARTS = 4


def migration_table(peer: str) -> str:
    """Return the mean returns of both sides in each quarter of the steps."""
    result = storage.load(f"{peer}_curves_ppo_CartPole-v1")
    (version,) = result["peer_versions"].values()
    rows = [["steps of CartPole-v1", "hotloop", f"{_NAMES[peer]} {version}"]]
    length = result["timesteps"] // _PARTS
    for part in range(_PARTS):
        start, end = part * length, (part + 1) * length
        cells = [_returns(result["runs"][side], start, end) for side in ("hotloop", peer)]
        rows.append([f"{start:,} to {end:,}", *cells])
    return table(*rows)


def _returns(runs: list[dict[str, Any]], start: int, end: int) -> str:
    means = [
        statistics.fmean(r for steps, r in run["episodes"] if start < steps <= end) for run in runs
    ]
    return f"{statistics.fmean(means):.0f} ± {statistics.stdev(means):.0f}"
