"""`hotloop train ALGORITHM`: options from the algorithm's Config, a live line, the timing tree."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from hotloop import timing
from hotloop.algorithms import ALGORITHMS
from hotloop.cli import need
from hotloop.cli.live import LiveLine
from hotloop.errors import ConfigError, UnknownNameError, nearest

HELP = """usage: hotloop train ALGORITHM [options]

Train an agent and leave a run directory behind: configuration, metrics, checkpoint, learning curve,
timing.

algorithms:
{algorithms}

`hotloop train ALGORITHM --help` lists every option with its default and meaning.

example:
  hotloop train ppo --env-id CartPole-v1 --total-timesteps 200000 --seed 1
"""


def run(args: list[str]) -> int:
    """Train; see `hotloop train --help`."""
    if not args or args[0] in ("-h", "--help"):
        lines = (f"  {name:6} {about}" for name, about in ALGORITHMS.items())
        print(HELP.format(algorithms="\n".join(lines)), end="")
        return 0 if args else 2
    name = args[0]
    if name not in ALGORITHMS:
        raise UnknownNameError(
            f"expected an algorithm ({', '.join(ALGORITHMS)}), got '{name}'"
            + (nearest(name, ALGORITHMS) or "; `hotloop train --help` lists them")
        )
    for module in ("torch", "gymnasium", "tyro", "safetensors", "matplotlib"):
        need(module, extra="train", purpose="training")
    algorithm = importlib.import_module(f"hotloop.algorithms.{name}")
    config = parse(algorithm.Config, args[1:], prog=f"hotloop train {name}")
    return _train(algorithm, config)


def parse(config_class: type, args: list[str], *, prog: str) -> Any:
    """A configuration from command-line options, one for each field.

    Raises:
        ConfigError: the configuration is inconsistent.
        SystemExit: an option is unknown or malformed (with a message), or help was asked for.
    """
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def json_object(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        """Dictionaries are given as JSON."""
        if info.type is not dict and getattr(info.type, "__origin__", None) is not dict:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="JSON",
            instance_from_str=lambda given: _json_object(given[0]),
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [json.dumps(value)],
        )

    return tyro.cli(config_class, args=args, prog=prog, registry=registry)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object such as '{{\"g\": 1.62}}', got '{text}'")
    return value


def _train(algorithm: Any, config: Any) -> int:
    live = LiveLine()
    # `kill` should end a run as cleanly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = algorithm.train(config, on_report=live.show)
    except KeyboardInterrupt:
        live.close()
        if live.run_dir is not None:
            _conclude(live.run_dir)
        print("interrupted: metrics, timing and the last policy are kept", file=sys.stderr)
        return 130
    except BaseException:
        live.close()
        raise
    live.close()
    _conclude(result.run_dir)
    print(f"mean return of the last 100 training episodes: {result.mean_return:.1f}")
    print(f"next: hotloop eval {result.run_dir}")
    return 0


def _conclude(run_dir: Path) -> None:
    """Draw the curve, print the timing tree and the largest cost."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import episodes_of, learning_curve, sparkline

    recordings, problems = timing.read_directory(run_dir / "timing")
    for problem in problems:
        print(f"timing: {problem}", file=sys.stderr)
    for recording in recordings:
        tree = recording.tree()
        print(f"\n{timing.render(tree)}\n")
        cost = timing.costliest(tree)
        if cost is not None:
            print(f"The largest cost is {cost}.")
        print(f"Recording this took {timing.cost_share(recording):.2%} of it.")
    run = RunDirectory.open(run_dir)
    line = sparkline(*episodes_of(run))
    if line:
        print(f"\nreturn over steps: {line}")
    print(f"learning curve: {learning_curve(run)}")
