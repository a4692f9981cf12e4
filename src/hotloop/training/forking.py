"""Forks of a run: a new run directory that goes on from another's last checkpoint.

With the same options a fork goes on as the run itself would, bit for bit where that resumes so.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hotloop.runs import RunDirectory
from hotloop.training.options import to_json


def copy_last(run_dir: Path, target: Path) -> None:
    """Copy what a run is gone on from: its configuration, its metrics, its last checkpoint.

    The best one comes too. There are no links: without them the newest is the last.

    Args:
        run_dir: of the run, which may go on meanwhile.
        target: a new directory.
    """
    checkpoints = run_dir / "checkpoints"
    links = [checkpoints / name for name in ("last", "best") if (checkpoints / name).is_symlink()]
    # A copy has no links, and nothing else.
    names = {path.resolve().name for path in links or checkpoints.iterdir()}
    (target / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy2(run_dir / name, target / name)
    for name in names:
        shutil.copytree(checkpoints / name, target / "checkpoints" / name)


def fork(source: Path, target: Path, config: Any) -> None:
    """Make a run directory that is to be resumed with other options.

    Args:
        source: a run's directory, or what `copy_last` made of one.
        target: the new run's directory, which must not exist.
        config: of the new run. Schedules that are as they were until the checkpoint make it the run
            that it would be if it had been trained with this configuration from the start.

    Raises:
        RunDirectoryError, OSError: it can't be written.
    """
    copy_last(source, target)
    run = RunDirectory.open(target)
    run.lock()
    try:
        run.replace_config(to_json(config))
    finally:
        run.close()
