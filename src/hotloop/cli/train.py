"""`hotloop train ALGORITHM`: options from the algorithm's Config, a live line, the timing tree."""

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
from hotloop.cli import need, tell
from hotloop.cli.train_options import configured, own_options
from hotloop.cli.workers import print_workers
from hotloop.errors import ConfigError, HotloopError
from hotloop.system.crowding import Crowding
from hotloop.system.processes import process_age_s
from hotloop.system.signals import Ended, end_once

if TYPE_CHECKING:
    from hotloop.runs import Report, Result
    from hotloop.runs.drawing import Drawing
    from hotloop.runs.live import LiveLine
    from hotloop.training.algorithm import Algorithm

HELP = """usage: hotloop train ALGORITHM [options]

Train an agent and leave a run directory behind: configuration, metrics, checkpoint, learning curve,
timing.

algorithms:
{algorithms}
  module:attribute  one of your own, such as my_reinforce:algorithm

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
    """Train; see `hotloop train --help`."""
    if not args or args[0] in ("-h", "--help"):
        lines = (f"  {name:6} {about}" for name, about in ALGORITHMS.items())
        print(HELP.format(algorithms="\n".join(lines)), end="")
        return 0 if args else 2
    for module in ("torch", "gymnasium", "tyro", "safetensors", "matplotlib"):
        need(module, extra="train", purpose="training")
    with timing.span("start"):
        with timing.span("import torch"):
            importlib.import_module("torch")
        with timing.span("import hotloop"):
            algorithm = find(args[0])
            importlib.import_module("hotloop.training.running")
        with timing.span("read options"):
            own, rest = own_options(args[1:])
            config = configured(algorithm, args[1:], args[0])
    if own["--save-config"] is not None:
        from hotloop.cli import configuration

        path = own["--save-config"]
        configuration.save(path, config, args[0])
        command = f"hotloop train {args[0]} --config {shlex.quote(path)}"
        for option in ("--seeds", "--jobs", "--lanes"):  # which no configuration holds
            if own[option] is not None:
                command += f" {option} {shlex.quote(own[option])}"
        command += "".join(f" --vary {shlex.quote(text)}" for text in own["--vary"])
        print(f"configuration: {path}\nnext: {command}")
        return 0
    if own["--seeds"] is None and not own["--vary"]:
        for option in ("--jobs", "--lanes"):
            if own[option] is not None:
                raise ConfigError(
                    f"`{option}` is for several trainings: give `--seeds` too, such as 1-5"
                )
        return train(algorithm, config)
    return _train_several(algorithm, config, args[0], own, rest)


def _train_several(
    algorithm: Algorithm, config: Any, name: str, own: Mapping[str, Any], rest: list[str]
) -> int:
    """Train with several seeds or values; return the exit code.

    Args:
        algorithm: what is trained.
        config: what the options come to.
        name: of the algorithm, as it was given.
        own: the command's own options.
        rest: the others.
    """
    from hotloop.cli import lanes, planned, seeds

    is_seeded = own["--seeds"] is not None
    if is_seeded and any(arg.partition("=")[0] == "--seed" for arg in rest):
        raise ConfigError("`--seed` and `--seeds` can't both be given: leave one of them out")
    if own["--lanes"] not in (None, "on", "off"):
        raise ConfigError(f"`--lanes` must be 'on' or 'off', got '{own['--lanes']}'")
    plan = planned.Plan(
        planned.parse_seeds(own["--seeds"]) if is_seeded else (config.seed,),
        planned.parse_varied(own["--vary"], algorithm.config, rest),
    )
    if own["--config"] is not None:
        rest = ["--config", own["--config"], *rest]
    rest = planned.without_seed(rest)
    jobs = planned.parse_jobs(own["--jobs"], config)
    is_together = own["--lanes"] == "on"
    directory = seeds.directory_of(config, algorithm.name)
    if plan.varied or is_together:  # a mistake is told before anything starts
        trainings = plan.each()
        configs = [configured(algorithm, rest, name, one.options) for one in trainings]
        if is_together:
            from hotloop.training.lanes import check_lanes

            check_lanes(algorithm, configs)
            jobs = jobs if own["--jobs"] else lanes.choose_jobs(jobs, configs)
            if jobs == 1:
                return lanes.train(algorithm, configs, trainings, directory)
    return seeds.train(name, rest, directory, plan=plan, jobs=jobs, lanes=is_together)


def train(algorithm: Algorithm, config: Any, **options: Any) -> int:
    """Train with a live line, then tell what came of it.

    Args:
        algorithm: one of hotloop's or the user's own.
        config: its configuration.
        **options: more of its `train`'s arguments.

    Returns:
        The exit code.
    """
    from hotloop.runs.drawing import Drawing
    from hotloop.runs.live import LiveLine

    live, drawing, start = LiveLine(), Drawing(), _start()
    with end_once() as ending, contextlib.ExitStack() as exits:
        exits.callback(drawing.end)
        drawing.prepare_short(config.total_timesteps)

        def on_report(report: Report) -> None:
            live.show(report)
            drawing.prepare(report)
            ending.check()

        def on_end(result: Result | None) -> None:
            ending.ignore()
            live.close()
            code = 1
            if result is not None:
                code = 0
                _conclude(live, drawing, start)
                print(result.execution, flush=True)
            elif ending.number is not None:
                code = 128 + ending.number
                _tell_of_interrupt(live, drawing, start)
            ending.obey()
            if threading.current_thread() is threading.main_thread():
                exits.callback(_leave_later(code, sys.exc_info()[1]))

        try:
            algorithm.train(config, on_report=on_report, on_end=on_end, progress=False, **options)
        except Ended as ended:
            return ended.exit_code
        except BaseException:
            if live.run_dir is not None and live.run_dir.exists():
                print(f"what there was until then is kept: {live.run_dir}", file=sys.stderr)
            raise
    return 0


def _tell_of_interrupt(live: LiveLine, drawing: Drawing, start: timing.Node | None) -> None:
    """Conclude a training that a signal has ended."""
    if live.run_dir is None or not live.run_dir.exists():
        tell("interrupted before the first iteration ended")
        return
    _conclude(live, drawing, start)
    tell(
        "interrupted; metrics, timing and the last checkpoint are kept: "
        f"hotloop resume {shlex.quote(str(live.run_dir))} goes on"
    )


def _leave_later(code: int, error: BaseException | None) -> Callable[[], None]:
    """End the process when environments never return from closing, not even to be interrupted.

    Args:
        code: to exit with.
        error: that has ended the training, and that nobody else would tell of.

    Returns:
        What to call when they have closed.
    """
    from hotloop.envs.closing import CLOSE_S

    def leave() -> None:
        if has_closed.wait(2 * CLOSE_S):
            return
        tell("warning: the environments never ended closing")
        if error is not None and not isinstance(error, Ended):
            tell(str(error))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)

    def end() -> None:
        has_closed.set()
        watch.join()

    has_closed = threading.Event()
    watch = threading.Thread(target=leave, name="closing", daemon=True)
    watch.start()
    return end


def _conclude(live: LiveLine, drawing: Drawing, start: timing.Node | None) -> None:
    """Draw the curve; print the timing trees, the largest cost, the curve and what to do next.

    What fails of it is told, and the rest goes on.
    """
    assert live.run_dir is not None
    path = live.run_dir
    curve = _told(lambda: drawing.draw(path), "no learning curve was drawn")
    _told(lambda: _print_timing(path, start), "no timing")
    _told(lambda: print_workers(path), "no account of the workers")
    _told(lambda: _print_crowding(path), "no account of the cores")
    _told(lambda: _print_returns(path), "no returns")
    if curve is not None:
        print(f"learning curve: {curve}")
    print(f"next: hotloop eval {shlex.quote(str(path))}")


def _told(part: Callable[[], Any], without: str) -> Any:
    """What a part of the conclusion returns; None, and a line on standard error, if it fails."""
    try:
        return part()
    except Exception as error:
        told = str(error) if isinstance(error, HotloopError) else f"{type(error).__name__}: {error}"
        tell(f"{without}: {told}")
        return None


def _start() -> timing.Node | None:
    """Return where the time since the process began has gone; None where nothing told of it."""
    recording = timing.current()
    try:
        start = recording.tree().find("start")
    except KeyError:
        return None
    if start.count > 1:  # a program that trains again and again
        return None
    # What came before: Python itself, and this command.
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
        if recording.pid != os.getpid():  # of the process that was resumed
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
    from hotloop import documents

    with contextlib.suppress(FileNotFoundError):
        found = Crowding.of(documents.read(run_dir / "cores.json"))
        if found is not None and found.is_crowded:
            print(f"\n{found.told()}")


def _print_returns(run_dir: Path) -> None:
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import episodes_of, sparkline

    steps, returns = episodes_of(RunDirectory.open(run_dir))
    if not len(returns):
        print("\nno episode ended")
        return
    print(f"\nreturn over steps: {sparkline(steps, returns)}")
    last = min(len(returns), 100)
    print(f"mean return of the last {last} training episodes: {returns[-last:].mean():.1f}")
