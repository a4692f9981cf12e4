"""Opening the file of a sweep: its settings name code, so they must be the user's own."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.importing import enable_local_imports
from hotloop.errors import ConfigError, UntrustedError, shortened
from hotloop.runs import trust

if TYPE_CHECKING:
    from hotloop.experiments import Results
    from hotloop.experiments.results import SweepSettings


def open_results(path: Path, *, is_trusted: bool) -> Results:
    """Open the file of a sweep.

    Raises:
        ConfigError: The file does not exist, or has no sweep.
        UntrustedError: Another user may have written the file.
    """
    from hotloop.experiments import Results

    if not path.exists():
        raise ConfigError(f"{path} does not exist: `hotloop sweep ALGORITHM …` creates it")
    results = Results(path)
    try:
        stored = results.settings
        if stored is None:
            raise ConfigError(f"{path} has no sweep: `hotloop sweep ALGORITHM …` starts one")
        if not is_trusted:
            _check_signature(path, stored)
    except BaseException:
        results.close()
        raise
    return results


def load_sweep(results: Results) -> tuple[Any, Any]:
    """Return the configuration and the search space of an open sweep. This imports its code."""
    from hotloop.algorithms import find
    from hotloop.cli.train_options import build_config
    from hotloop.experiments.spaces import check_trials, data_check, parse

    stored = results.settings
    assert stored is not None
    if any(
        ":" in text for text in (stored.algorithm, *stored.args, *map(str, stored.space.values()))
    ):
        enable_local_imports()
    algorithm = find(stored.algorithm)
    config = build_config(algorithm, stored.args, stored.algorithm)
    config = dataclasses.replace(config, total_timesteps=stored.steps)
    space = parse(stored.space, algorithm.config)
    check_trials(results.path, results.trials(), space, data_check(algorithm.config))
    return config, space


def _check_signature(path: Path, settings: SweepSettings) -> None:
    if trust.is_signed(dataclasses.asdict(settings)):
        return
    spaces = [f"{name}={text}" for name, text in settings.space.items()]
    options = [
        f"--{name.replace('_', '-')}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in dataclasses.asdict(settings.options).items()
        if name.startswith(("ray", "trial_")) and value
    ]
    command = shlex.join([settings.algorithm, *options, *settings.args, *spaces])
    raise UntrustedError(
        f"{path} was not written by your sweeps on this machine, or was changed since, and it "
        f"could run code by `{shortened(command, 1000)}`: check it, and pass --trust if you trust "
        "its author"
    )
