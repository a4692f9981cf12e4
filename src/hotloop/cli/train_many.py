"""Several trainings in one command: `--seeds 1-5 --vary learning_rate=1e-4,3e-4`.

All run directories are in one directory, so that `hotloop plot DIRECTORY` draws the seeds of a
setting as one curve. The file of results there is that of a sweep.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.signals import Interrupted, interrupt_once
from hotloop.base.streams import notify
from hotloop.cli.search_space import check_fixed
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.experiments import Plan
    from hotloop.experiments.runner import Runner


def varied_options(options: Mapping[str, Any], args: list[str]) -> dict[str, str]:
    """Return the options of `--vary` with their values.

    Raises:
        ConfigError: a value is malformed, or an option has a fixed value too.
    """
    from hotloop.experiments.spaces import parse_assignments

    form = "NAME=VALUES such as learning_rate=1e-4,3e-4"
    texts = parse_assignments(options["--vary"], "--vary ", form=form)
    check_fixed(texts, args)
    return texts


def train_many(
    name: str, config: Any, texts: Mapping[str, str], options: Mapping[str, Any], args: list[str]
) -> int:
    """Train with several seeds or option values.

    Args:
        name: name of the algorithm on the command line.
        config: configuration of all trainings.
        texts: varied options with their values.
        options: the command's own options.
        args: the other arguments.

    Returns:
        The exit code: 1 if a training failed.

    Raises:
        ConfigError, UnknownNameError: an option is invalid.
        RunDirectoryError: a run directory exists already.
    """
    from hotloop.algorithms import find
    from hotloop.experiments.launch import group_directory, group_paths, open_group, plan_group
    from hotloop.experiments.plan import parse_seeds

    # Check the options, and make the plan.
    is_seeded = options["--seeds"] is not None
    if is_seeded and any(arg.partition("=")[0] == "--seed" for arg in args):
        raise ConfigError("`--seed` and `--seeds` can't be combined: remove one of them")
    if options["--lanes"] not in (None, "on", "off"):
        raise ConfigError(f"`--lanes` must be 'on' or 'off', got '{options['--lanes']}'")
    seeds = parse_seeds(options["--seeds"]) if is_seeded else (config.seed,)
    jobs, has_lanes = _parse_jobs(options["--jobs"]), options["--lanes"] == "on"
    plan = plan_group(name, config, texts, seeds, jobs, has_lanes=has_lanes)
    directory = group_directory(config, find(name).name)
    # Train.
    code = 0
    with interrupt_once() as guard:

        def on_change(_: Runner) -> None:
            guard.check()

        def on_line(label: str, text: str) -> None:
            print(f"{label} | {text}", flush=True)

        runner = open_group(plan, directory, on_change=on_change, on_line=on_line)
        print(f"{_describe(plan, has_lanes=has_lanes)}, in {directory}", flush=True)
        try:
            runner.tune()
        except Interrupted as interrupt:
            code = interrupt.exit_code
        finally:
            runner.results.close()
    return _conclude(runner, group_paths(plan, directory), code)


def _parse_jobs(text: str | None) -> int | None:
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise ConfigError(f"`--jobs` must be a positive number of processes, got '{text}'")
    return None if text is None else int(text)


def _describe(plan: Plan, *, has_lanes: bool) -> str:
    """Return the number of settings, seeds and processes as text."""
    num_settings = math.prod(map(len, plan.space.values()))
    text = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}"
    text = text if num_settings == 1 else f"{num_settings} settings × {text}"
    if not has_lanes:
        return f"{text}, {plan.jobs} at a time"
    processes = "one process" if plan.jobs == 1 else f"each of {plan.jobs} processes"
    return f"{text}, {plan.lanes} lanes in {processes}"


def _conclude(runner: Runner, paths: list[Path], code: int) -> int:
    """List the runs and the next command. Return the exit code."""
    from hotloop.cli.runs import print_runs
    from hotloop.reports.training_summary import print_crowding

    directory = runner.directory
    existing = [path for path in paths if (path / "config.json").exists()]
    if existing:
        print_crowding(existing[-1])
        print()
        print_runs(existing, directory)
        print(f"next: hotloop plot {shlex.quote(str(directory))}")
    failed = [run for trial in runner.status.trials for run in runner.status.runs(trial.number)]
    failed = [run for run in failed if run.state == "failed"]
    for run in failed:
        label = Path(run.directory).name
        notify(f"{label} failed: {run.reason}; its output is in {directory / 'output.log'}")
    if code:
        notify("interrupted: `hotloop resume RUN` continues a run that is not finished")
        return code
    return 1 if failed else 0
