"""Forks of a run: a new run directory that continues from another run's last checkpoint.

With the same options, a fork gives the same weights as resuming the run.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from hotloop.runs import RunDirectory
from hotloop.runs.policies import POOL, SELF_PLAY_FILE
from hotloop.training.options import RunOptions, to_json


def copy_last(run_dir: Path, target: Path, *, checkpoint: str = "last") -> None:
    """Copy a run's configuration, metrics, last and best checkpoints, and files of self-play.

    The copy has no links, and without links the newest checkpoint counts as the last.

    Args:
        run_dir: the run's directory. The run may still be training.
        target: a new directory.
        checkpoint: another checkpoint to copy too.
    """
    checkpoints = run_dir / "checkpoints"
    links = [checkpoints / name for name in ("last", "best") if (checkpoints / name).is_symlink()]
    if checkpoint != "last":
        links.append(checkpoints / checkpoint)
    # A previous copy has no links, and only the needed checkpoints.
    names = {path.resolve().name for path in links or checkpoints.iterdir()}
    (target / "checkpoints").mkdir(parents=True)
    for name in names:
        shutil.copytree(checkpoints / name, target / "checkpoints" / name)
    if (run_dir / POOL).is_dir():  # after the checkpoints, whose snapshots are then complete
        shutil.copytree(run_dir / POOL, target / POOL, ignore=shutil.ignore_patterns(".*"))
    for name in ("config.json", "metrics.jsonl", SELF_PLAY_FILE):
        with contextlib.suppress(FileNotFoundError):  # the user may have moved damaged metrics away
            shutil.copy2(run_dir / name, target / name)


def fork(source: Path, target: Path, config: RunOptions, *, checkpoint: str = "last") -> None:
    """Make a new run directory, to resume with other options.

    Args:
        source: a run's directory, or its copy from `copy_last`.
        target: the new run's directory, which must not exist.
        config: the new run's configuration. If its schedules are unchanged up to the checkpoint,
            the fork equals a run that was trained with this configuration from the start.
        checkpoint: another checkpoint to copy too.

    Raises:
        RunDirectoryError, OSError: the directory can't be written.
    """
    copy_last(source, target, checkpoint=checkpoint)
    run = RunDirectory.open(target)
    run.lock()
    try:
        run.replace_config(to_json(config))
    finally:
        run.close()
