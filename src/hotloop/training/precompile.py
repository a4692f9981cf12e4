"""Compilation of an algorithm's updates before its first run."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from typing import TYPE_CHECKING

from hotloop.base.streams import notify
from hotloop.training.options import AnyConfig, ReplayOptions

if TYPE_CHECKING:
    from hotloop.runs import Report
    from hotloop.training.algorithm import Algorithm

_NUM_ROUNDS = 64  # of off-policy updates: more than the periods of delayed ones


def precompile(algorithm: Algorithm[AnyConfig], config: AnyConfig) -> str:
    """Compile the updates of a configuration into the cache, by the shortest run that needs them.

    Returns:
        How the updates were executed, see `RunResult.execution`.

    Raises:
        ConfigError: compiling is impossible on this machine.
    """

    def show(report: Report) -> None:
        if report.activity:
            notify(report.activity)

    with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
        changes = {"execution": "compile", "run_dir": f"{folder}/run", "track": ()}
        if isinstance(config, ReplayOptions):
            start = min(config.learning_starts, config.batch_size)
            steps = max(start, config.batch_size)
            round_steps = config.train_frequency * config.total_envs
            update_steps = min(1 / config.update_to_data, config.total_timesteps)
            steps += math.ceil(_NUM_ROUNDS * max(round_steps, update_steps))
            changes |= {"learning_starts": start, "total_timesteps": steps}
        else:
            changes["total_timesteps"] = 1  # one batch
        short_config = dataclasses.replace(config, **changes)
        return algorithm.train(short_config, on_report=show, progress=False).execution
