"""`hotloop train ALGORITHM`: options from the algorithm's Config, a live line, the timing tree."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shlex
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from hotloop import timing
from hotloop.algorithms import ALGORITHMS, find
from hotloop.cli import need, tell
from hotloop.cli.workers import print_workers
from hotloop.errors import ConfigError, HotloopError, UnknownNameError
from hotloop.system.crowding import Crowding
from hotloop.system.processes import process_age_s
from hotloop.system.signals import Ended, end_once

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

    from hotloop.runs import Report, Result
    from hotloop.runs.drawing import Drawing
    from hotloop.runs.live import LiveLine
    from hotloop.training.algorithm import Algorithm

_LEAST_COLUMNS = 40

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
  hotloop train ppo --learning-rate 1e-3 --save-config fast.toml
  hotloop train ppo --config fast.toml
"""

# Options of the command itself, and what help says of each.
_OWN = {
    "--seeds": ("SEEDS", "one run for each seed, such as 1-5 or 1,3,7-9, in one directory"),
    "--jobs": ("N", "seeds at a time; by default as many as the cores have room for"),
    "--config": ("FILE", "take options from a TOML file; those that you give come first"),
    "--save-config": ("FILE", "write the options to a TOML file, and train nothing"),
}


def run(args: list[str]) -> int:
    """Train; see `hotloop train --help`."""
    if not args or args[0] in ("-h", "--help"):
        lines = (f"  {name:6} {about}" for name, about in ALGORITHMS.items())
        print(HELP.format(algorithms="\n".join(lines)), end="")
        return 0 if args else 2
    for module in ("torch", "gymnasium", "tyro", "safetensors", "matplotlib"):
        need(module, extra="train", purpose="training")
    prog = f"hotloop train {args[0]}"
    with timing.span("start"):
        with timing.span("import torch"):
            importlib.import_module("torch")
        with timing.span("import hotloop"):
            algorithm = find(args[0])
            importlib.import_module("hotloop.training.train")
        with timing.span("read options"):
            own, rest = _own_options(args[1:])
            filed = {}
            if own["--config"] is not None:
                from hotloop.cli import configuration

                filed = configuration.read(own["--config"], algorithm.config, args[0])
            config = parse(
                algorithm.config, rest, prog=prog, presets=algorithm.presets, filed=filed
            )
    if own["--save-config"] is not None:
        from hotloop.cli import configuration

        path = own["--save-config"]
        configuration.save(path, config, args[0])
        command = f"hotloop train {args[0]} --config {shlex.quote(path)}"
        for option in ("--seeds", "--jobs"):  # the command's own, which no configuration holds
            if own[option] is not None:
                command += f" {option} {shlex.quote(str(own[option]))}"
        print(f"configuration: {path}\nnext: {command}")
        return 0
    if own["--seeds"] is None:
        if own["--jobs"] is not None:
            raise ConfigError("`--jobs` is for several seeds: give `--seeds` too, such as 1-5")
        return train(algorithm, config)
    from hotloop.cli import seeds

    if any(arg.partition("=")[0] == "--seed" for arg in rest):
        raise ConfigError("`--seed` and `--seeds` can't both be given: leave one of them out")
    if own["--config"] is not None:
        rest = ["--config", own["--config"], *rest]
    return seeds.train(
        args[0],
        rest,
        config,
        name=algorithm.name,
        seeds=seeds.parse_seeds(own["--seeds"]),
        jobs=seeds.parse_jobs(own["--jobs"], config),
    )


def _own_options(args: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """Return the values of the command's own options, None for those not given, and the rest.

    Raises:
        ConfigError: one is given twice, or without a value.
    """
    found: dict[str, str | None] = dict.fromkeys(_OWN)
    rest: list[str] = []
    following = iter(args)
    for arg in following:
        name, has_value, value = arg.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name not in _OWN:
            rest.append(arg)
            continue
        if not has_value:
            value = next(following, "")
        if not value or value.startswith("--"):
            raise ConfigError(f"`{name}` needs a value: {_OWN[name][1]}")
        if found[name] is not None:
            raise ConfigError(f"`{name}` is given twice: give it once")
        found[name] = value
    return found, rest


def parse(
    config_class: type,
    args: list[str],
    *,
    prog: str,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    filed: Mapping[str, Any] | None = None,
) -> Any:
    """A configuration from command-line options, one for each field.

    Args:
        config_class: the algorithm's.
        args: the options.
        prog: what help calls the command.
        presets: by environment, what stands in for options that are not given; what of it was
            taken is printed.
        filed: options from a file, which stand in before a preset's.

    Raises:
        ConfigError: the configuration is inconsistent.
        SystemExit: an option is unknown or malformed (with a message), or help was asked for.
    """
    import tyro

    _refuse_retired(config_class, args)
    # Parsed without its checks, so that a mistake they find is told as every other one is.
    unchecked = type(config_class.__name__, (config_class,), {"__post_init__": lambda _: None})
    presets = presets or {}
    description = config_class.__doc__ or ""
    if presets:
        told = (f"{env_id} has {_values(preset)}" for env_id, preset in presets.items())
        description += "\n\nOptions that are not given come from the environment's preset, if it "
        description += f"has one: {'; '.join(told)}."
    own = (f"{name} {value}: {about}" for name, (value, about) in _OWN.items())
    description += f"\n\nOf the command itself: {'; '.join(own)}."
    options: dict[str, Any] = {"args": args, "prog": prog, "registry": _rules()}
    _check_owned(args, config_class)
    filed = dict(filed or {})
    if filed:
        options["default"] = unchecked(**filed)
    with _calm_tyro():
        given: Any = tyro.cli(unchecked, description=description, **options)
    from hotloop.training.algorithm import preset_of

    preset = preset_of(presets, given.env_id)
    if preset:
        # Once more, with the preset's values as defaults: what is another value now was not given.
        without = given
        with _calm_tyro():
            options["default"] = unchecked(**{**preset, **filed})
            given = tyro.cli(unchecked, **options)
        taken = {x: preset[x] for x in preset if getattr(given, x) != getattr(without, x)}
        if taken:
            print(f"preset for {given.env_id}: {_values(taken)}; options that you give come first")
    return config_class(**vars(given))


def _check_owned(args: Sequence[str], config_class: type) -> None:
    """Refuse options that only other algorithms have, and say who.

    Raises:
        UnknownNameError: there is one.
    """
    own = {field.name for field in fields(config_class)}
    for arg in args:
        name = arg.removeprefix("--").partition("=")[0].replace("-", "_")
        if not arg.startswith("--") or name in own or name == "help":
            continue
        # Other algorithms are imported only once something is wrong.
        if any(name in {x.name for x in fields(find(other).config)} for other in ALGORITHMS):
            from hotloop.training.options.base import unknown_option

            raise UnknownNameError(unknown_option(name, config_class))


@contextlib.contextmanager
def _calm_tyro() -> Iterator[None]:
    """Have tyro lay out help for 40 columns where there are fewer, and keep its warnings back.

    With 5 columns it never ends. It warns of numbers as defaults of options that may be schedules,
    and takes them.
    """
    before = os.environ.get("COLUMNS")
    if shutil.get_terminal_size().columns < _LEAST_COLUMNS:
        os.environ["COLUMNS"] = str(_LEAST_COLUMNS)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="tyro")
            yield
    finally:
        if before is not None:
            os.environ["COLUMNS"] = before
        else:
            os.environ.pop("COLUMNS", None)


def _values(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _refuse_retired(config_class: type, args: list[str]) -> None:
    """Answer options of earlier versions.

    Raises:
        ConfigError: says what to write instead.
    """
    flags = {arg.partition("=")[0].replace("_", "-") for arg in args}
    retired = flags & {"--anneal-learning-rate", "--no-anneal-learning-rate"}
    if retired and "anneal_learning_rate" not in {field.name for field in fields(config_class)}:
        raise ConfigError(
            f"`{min(retired)}` is gone: write `--learning-rate linear:1e-3,0` to let the learning "
            "rate fall, or a number to keep it"
        )


def _rules() -> ConstructorRegistry:
    """Return how options are read whose types tyro does not know."""
    from tyro.constructors import (
        ConstructorRegistry,
        PrimitiveConstructorSpec,
        PrimitiveTypeInfo,
    )

    from hotloop.training.options import Factory, Scheduled

    registry = ConstructorRegistry()

    def add(
        matches: Callable[[Any], bool],
        metavar: str,
        read: Callable[[str], Any],
        write: Callable[[Any], str] = str,
    ) -> None:
        @registry.primitive_rule
        def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
            if not matches(info.type):
                return None
            return PrimitiveConstructorSpec(
                nargs=1,
                metavar=metavar,
                instance_from_str=lambda given: read(given[0]),
                is_instance=lambda value: value is not None,
                str_from_instance=lambda value: [write(value)],
            )

    add(lambda kind: dict in (kind, get_origin(kind)), "JSON", _json_object, json.dumps)
    add(lambda kind: kind == Scheduled, "FLOAT|SCHEDULE", _number_or_text)
    add(lambda kind: kind == tuple[str, ...], "NAME,NAME,…", _names, ",".join)
    add(lambda kind: kind == Factory, "MODULE:NAME", str)
    return registry


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _number_or_text(text: str) -> float | str:
    """Return a number, or the text of a schedule, which the configuration checks."""
    try:
        return float(text)
    except ValueError:
        return text


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object such as '{{\"g\": 1.62}}', got '{text}'")
    return value


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
