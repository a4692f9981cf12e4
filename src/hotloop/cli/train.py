"""`hotloop train ALGORITHM`: train, with a live progress line and a timing tree at the end."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop import timing
from hotloop.algorithms import ALGORITHMS, find
from hotloop.base.crowding import Crowding
from hotloop.base.importing import require_module
from hotloop.base.processes import process_age_s
from hotloop.base.rounding import format_number
from hotloop.base.signals import Interrupted, interrupt_once, start_thread
from hotloop.base.streams import notify
from hotloop.cli.train_options import build_config, split_command_options
from hotloop.errors import ConfigError, HotloopError
from hotloop.reports.workers import print_workers

if TYPE_CHECKING:
    from hotloop.runs import Report, RunResult
    from hotloop.training.algorithm import Algorithm
    from hotloop.training.background_plot import BackgroundPlot
    from hotloop.training.live_line import LiveLine

HELP = """usage: hotloop train ALGORITHM [options]

Train an agent. The run directory stores the configuration, metrics, checkpoints, learning curve and
timing.

algorithms:
{algorithms}
  module:attribute  your own algorithm, such as my_reinforce:algorithm

`hotloop train ALGORITHM --help` lists every option with its default and meaning.

examples:
  hotloop train ppo --env-id CartPole-v1 --total-timesteps 200000 --seed 1
  hotloop train ppo --learning-rate linear:3e-4,0 --clip-range cosine:0.2,0.05,0.5
  hotloop train sac --env-id Pendulum-v1
  hotloop train ppo --seeds 1-5 --jobs 2
  hotloop train ppo --seeds 1-5 --vary learning_rate=1e-4,1e-3 --lanes on
  hotloop train ppo --learning-rate 1e-3 --save-config fast.toml
  hotloop train ppo --config fast.toml
"""


def run(args: list[str]) -> int:
    """Run the command. See `hotloop train --help`."""
    if not args or args[0] in ("-h", "--help"):
        lines = (f"  {name:6} {summary}" for name, summary in ALGORITHMS.items())
        print(HELP.format(algorithms="\n".join(lines)), end="")
        return 0 if args else 2
    for module in ("torch", "gymnasium", "tyro", "safetensors", "matplotlib"):
        require_module(module, extra="train", purpose="training")
    with timing.span("start"):
        with timing.span("import torch"):
            importlib.import_module("torch")
        with timing.span("import hotloop"):
            algorithm = find(args[0])
            importlib.import_module("hotloop.training.run")
        with timing.span("read options"):
            options, config_args = split_command_options(args[1:])
            config = build_config(algorithm, args[1:], args[0])
    if options["--save-config"] is not None:
        from hotloop.cli import configuration

        path = options["--save-config"]
        configuration.save(path, config, args[0])
        command = f"hotloop train {args[0]} --config {shlex.quote(path)}"
        command += configuration.trust_option(config)
        for option in ("--seeds", "--jobs", "--lanes"):  # not part of a configuration
            if options[option] is not None:
                command += f" {option} {shlex.quote(options[option])}"
        command += "".join(f" --vary {shlex.quote(text)}" for text in options["--vary"])
        print(f"configuration: {path}\nnext: {command}")
        return 0
    if options["--seeds"] is None and not options["--vary"]:
        for option in ("--jobs", "--lanes"):
            if options[option] is not None:
                raise ConfigError(
                    f"`{option}` needs several trainings: pass `--seeds` too, such as 1-5"
                )
        return train(algorithm, config)
    return _train_several(algorithm, config, args[0], options, config_args)


def _train_several(
    algorithm: Algorithm, config: Any, name: str, options: Mapping[str, Any], config_args: list[str]
) -> int:
    """Train with several seeds or option values, and return the exit code."""
    from hotloop.cli import lanes, seeds, training_plan

    is_seeded = options["--seeds"] is not None
    if is_seeded and any(arg.partition("=")[0] == "--seed" for arg in config_args):
        raise ConfigError("`--seed` and `--seeds` can't be combined: remove one of them")
    if options["--lanes"] not in (None, "on", "off"):
        raise ConfigError(f"`--lanes` must be 'on' or 'off', got '{options['--lanes']}'")
    plan = training_plan.TrainingPlan(
        training_plan.parse_seeds(options["--seeds"]) if is_seeded else (config.seed,),
        training_plan.parse_varied(options["--vary"], algorithm.config, config_args),
    )
    if options["--config"] is not None:
        trust = ["--trust"] if options["--trust"] else []
        config_args = ["--config", options["--config"], *trust, *config_args]
    config_args = training_plan.without_seed(config_args)
    jobs = training_plan.parse_jobs(options["--jobs"], config)
    use_lanes = options["--lanes"] == "on"
    directory = seeds.output_directory(config, algorithm.name)
    if plan.varied or use_lanes:  # report errors before any training starts
        trainings = plan.trainings()
        configs = [build_config(algorithm, config_args, name, run.options) for run in trainings]
        if use_lanes:
            from hotloop.training.lanes import check_lanes

            check_lanes(algorithm, configs)
            jobs = jobs if options["--jobs"] else lanes.choose_jobs(jobs, configs)
            if jobs == 1:
                return lanes.train(algorithm, configs, trainings, directory)
    return seeds.train(name, config_args, directory, plan=plan, jobs=jobs, lanes=use_lanes)


def train(algorithm: Algorithm, config: Any, **options: Any) -> int:
    """Train with a live progress line, then print a summary.

    Args:
        algorithm: A built-in or custom algorithm.
        config: Its configuration.
        **options: More arguments of `Algorithm.train`.

    Returns:
        The exit code.
    """
    from hotloop.training.background_plot import BackgroundPlot
    from hotloop.training.live_line import LiveLine

    live, drawing, start = LiveLine(), BackgroundPlot(), _read_startup()
    with interrupt_once() as guard, contextlib.ExitStack() as exits:
        exits.callback(drawing.finish)
        drawing.prepare_short(config.total_timesteps)

        def on_report(report: Report) -> None:
            live.show(report)
            drawing.prepare(report)
            guard.check()

        def on_end(result: RunResult | None) -> None:
            guard.ignore()
            live.close()
            code = 1
            if result is not None:
                code = 0
                _conclude(live, drawing, start)
                print(result.execution, flush=True)
            elif guard.number is not None:
                code = 128 + guard.number
                _conclude_interrupted(live, drawing, start)
            guard.restore_defaults()
            if threading.current_thread() is threading.main_thread():
                exits.callback(_exit_if_close_hangs(code, sys.exc_info()[1]))

        try:
            algorithm.train(config, on_report=on_report, on_end=on_end, progress=False, **options)
        except Interrupted as interrupt:
            return interrupt.exit_code
        except BaseException:
            if live.run_dir is not None and live.run_dir.exists():
                print(f"the run directory is kept: {live.run_dir}", file=sys.stderr)
            raise
    return 0


def _conclude_interrupted(
    live: LiveLine, drawing: BackgroundPlot, start: timing.Node | None
) -> None:
    """Print the summary of a training that a signal has stopped."""
    if live.run_dir is None or not live.run_dir.exists():
        notify("interrupted before the first iteration ended")
        return
    _conclude(live, drawing, start)
    notify(
        "interrupted; metrics, timing and the last checkpoint are kept: "
        f"continue with hotloop resume {shlex.quote(str(live.run_dir))}"
    )


def _exit_if_close_hangs(code: int, error: BaseException | None) -> Callable[[], None]:
    """Exit if closing the environments hangs. Return the function to call after it."""
    # `error`, which stopped the training, is printed before the exit.
    from hotloop.envs.closing import CLOSE_S

    def leave() -> None:
        if has_closed.wait(2 * CLOSE_S):
            return
        notify("warning: closing the environments did not finish")
        if error is not None and not isinstance(error, Interrupted):
            notify(str(error))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)

    def end() -> None:
        has_closed.set()
        watcher.join()

    has_closed = threading.Event()
    watcher = start_thread(leave, name="closing")
    return end


def _conclude(live: LiveLine, drawing: BackgroundPlot, start: timing.Node | None) -> None:
    """Draw the learning curve, and print timing, workers, returns and the next command."""
    # A part that fails prints its error, and the other parts continue.
    assert live.run_dir is not None
    path = live.run_dir
    curve = _run_part(lambda: drawing.draw(path), "no learning curve was drawn")
    _run_part(lambda: _print_timing(path, start), "no timing")
    _run_part(lambda: print_workers(path), "no table of the workers")
    _run_part(lambda: _print_crowding(path), "no check of the cores")
    _run_part(lambda: _print_returns(path), "no returns")
    if curve is not None:
        print(f"learning curve: {curve}")
    print(f"next: hotloop eval {shlex.quote(str(path))}")


def _run_part(part: Callable[[], Any], failure: str) -> Any:
    """Return the result of a part of the summary. If it fails, print the error and return None."""
    try:
        return part()
    except Exception as error:
        text = str(error) if isinstance(error, HotloopError) else f"{type(error).__name__}: {error}"
        notify(f"{failure}: {text}")
        return None


def _read_startup() -> timing.Node | None:
    """Return the timing of the process start, or None if it was not recorded."""
    recording = timing.current()
    try:
        start = recording.tree().find("start")
    except KeyError:
        return None
    if start.count > 1:  # a program that trains several times
        return None
    # The time before: the start of Python and of this command.
    before_ns = round(process_age_s() * 1e9) - start.total_ns
    start.total_ns += before_ns
    start.min_ns = start.max_ns = start.total_ns
    start.child("begin Python").add(
        timing.Node("", count=1, total_ns=before_ns, min_ns=before_ns, max_ns=before_ns)
    )
    return start


def _print_timing(run_dir: Path, start: timing.Node | None) -> None:
    recordings, problems = timing.read_directory(run_dir / "timing")
    for problem in problems:
        print(f"timing: {problem}", file=sys.stderr)
    for recording in recordings:
        if recording.pid != os.getpid():  # an earlier process of a resumed run
            continue
        tree = recording.tree()
        if start is not None and tree.children:
            tree.total_ns += start.total_ns
            tree.child("start").add(start)
        cost = timing.costliest(tree)
        if cost is None:
            print("\nno timing: its file could not be written")
            continue
        print(f"\n{timing.render(tree)}\n\nThe largest cost is {cost}.")
        print(f"Recording this took {timing.cost_share(recording):.2%} of it.")


def _print_crowding(run_dir: Path) -> None:
    from hotloop.base import documents

    with contextlib.suppress(FileNotFoundError):
        crowding = Crowding.from_json(documents.read(run_dir / "cores.json"))
        if crowding is not None and crowding.is_crowded:
            print(f"\n{crowding.summary()}")


def _print_returns(run_dir: Path) -> None:
    from hotloop.base.sparkline import sparkline
    from hotloop.runs import RunDirectory
    from hotloop.runs.episodes import episodes_from_metrics

    steps, returns = episodes_from_metrics(RunDirectory.open(run_dir).metrics())
    if not len(returns):
        print("\nno episode ended")
        return
    print(f"\nreturn over steps: {sparkline(steps, returns)}")
    last = min(len(returns), 100)
    recent = returns[-last:]
    mean = format_number(float(recent.mean()), float(recent.std()))
    print(f"mean return of the last {last} training episodes: {mean}")
