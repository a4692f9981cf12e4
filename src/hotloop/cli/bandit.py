"""`hotloop bandit …`: figures of the book, single agents, comparisons, grids."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import math
import re
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cli import need
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import ConfigError, UnknownNameError, nearest

if TYPE_CHECKING:
    from rich.progress import Progress

    from hotloop.bandits.figures import BookFigure
    from hotloop.bandits.results import Comparison, Estimate, Result

SUBCOMMANDS = {
    "figure": "Compute and draw a figure of Sutton & Barto's chapter 2.",
    "run": "Play one agent in one environment, over many runs.",
    "compare": "Play several agents on the same random numbers, with paired differences.",
    "grid": "Play every combination of settings; killed at any moment, it goes on where it was.",
}

HELP = """usage: hotloop bandit COMMAND ...

k-armed bandits: thousands of runs at a few nanoseconds a step.

commands:
{commands}

agents (FIELD=DEFAULT):
{agents}

environments (FIELD=DEFAULT):
{environments}

Values are numbers such as 0.1, 1/128 or 2**-7, or none, true, false.

examples:
  hotloop bandit figure 2.2
  hotloop bandit run epsilon-greedy --epsilon 0.1 --runs 2000 --steps 1000 --arms 10
  hotloop bandit compare "ucb c=2" "epsilon-greedy epsilon=0.1" --picture curves,regret
  hotloop bandit compare beta-thompson kl-ucb --environment bernoulli --env means=0.9,0.8

`hotloop bandit COMMAND --help` says more of each.
"""

PICTURES = {
    "curves": "average reward and optimal actions over steps",
    "regret": "cumulative regret, on a linear and a logarithmic axis",
    "boxes": "the regret at the end over runs",
    "shares": "how often each arm was taken",
}


def run(args: list[str]) -> int:
    """A subcommand; see `hotloop bandit --help`."""
    if not args or args[0] in ("-h", "--help"):
        from hotloop.bandits.agents import AGENTS
        from hotloop.bandits.environments import ENVIRONMENTS

        width = max(map(len, SUBCOMMANDS))
        commands = "\n".join(f"  {name:{width}}  {about}" for name, about in SUBCOMMANDS.items())
        agents, environments = _listing(AGENTS), _listing(ENVIRONMENTS)
        print(HELP.format(commands=commands, agents=agents, environments=environments), end="")
        return 0 if args else 2
    name, rest = args[0], args[1:]
    if name not in SUBCOMMANDS:
        raise UnknownNameError(
            f"expected one of {', '.join(SUBCOMMANDS)} after `hotloop bandit`, got '{name}'"
            + (nearest(name, SUBCOMMANDS) or "; `hotloop bandit --help` lists them")
        )
    if name == "grid":
        return importlib.import_module("hotloop.cli.bandit_grid").run(rest)
    return {"figure": _figure, "run": _run, "compare": _compare}[name](rest)


def _figure(args: list[str]) -> int:
    parser = _parser(
        "figure",
        "Compute a figure of chapter 2 of Sutton & Barto's Reinforcement Learning (2nd edition, "
        "2018), draw it with 95 % confidence, and print its table.",
    )
    from hotloop.bandits.figures import FIGURES

    lines = []
    for plan in FIGURES.values():
        sizes = f" ({plan.num_runs:,} runs of {plan.num_steps:,} steps)" if plan.settings else ""
        lines.append(f"  {plan.number:5} {plan.title}{sizes}")
    parser.epilog = "figures:\n" + "\n".join(lines)
    parser.add_argument("number", metavar="NUMBER", help="2.1 … 2.6, or 2.11 (exercise 2.11)")
    _add_sizes(parser, runs=None, steps=None)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where to: .png, .svg or .pdf (default: figure_NUMBER.png)",
    )
    _add_json(parser)
    options = _parsed(parser, args)
    need("numba", extra="bandit", purpose="playing bandits")

    from hotloop.bandits.figures import book_figure, plan_of
    from hotloop.bandits.pictures import check_picture

    plan = plan_of(options.number)
    output = options.output or Path(f"figure_{plan.number}.png")
    check_picture(output, option="--output")
    need("matplotlib", extra="bandit", purpose="drawing a figure")
    with ProgressLine() as progress:
        figure = book_figure(
            plan.number,
            num_runs=options.runs,
            num_steps=options.steps,
            seed=options.seed,
            threads=options.threads,
            on_progress=progress.show,
        )
    if not options.json:  # first what was computed: drawing may fail
        _print_figure(figure)
    figure.draw(output)
    if options.json:
        return _print_json(figure.to_dict() | {"output": str(output)})
    print(f"\npicture: {output}")
    if figure.comparison is not None:
        _print_speed(figure.results, figure.elapsed_s)
    return 0


def _run(args: list[str]) -> int:
    from hotloop.bandits.agents import AGENTS
    from hotloop.bandits.options import agent_from

    prog, agent_class = "run", None
    if args and not args[0].startswith("-"):
        if args[0] not in AGENTS:
            agent_from(args[0], {})  # raises, with the nearest name
        agent_class, args = AGENTS[args[0]], args[1:]
        prog = f"run {agent_class.name}"
    about = "Play one agent in one environment, over many runs."
    if agent_class is not None:
        about += f"\n\n{(inspect.getdoc(agent_class) or '').split('Raises:')[0].strip()}"
    parser = _parser(prog, about)
    if agent_class is None:
        parser.usage = "hotloop bandit run AGENT [--FIELD VALUE ...] [options]"
        parser.epilog = f"agents (FIELD=DEFAULT):\n{_listing(AGENTS)}\n\n{parser.epilog}"
    else:
        docs = _field_docs(agent_class)
        group = parser.add_argument_group("settings of the agent")
        for one in fields(agent_class):
            group.add_argument(
                f"--{one.name.replace('_', '-')}",
                metavar="VALUE",
                dest=f"agent.{one.name}",
                help=f"{docs.get(one.name, '')} (default: {_text(one.default)})".replace("%", "%%"),
            )
    _add_environment(parser)
    _add_sizes(parser, runs=2000, steps=1000)
    _add_pictures(parser, "bandit.png")
    parser.add_argument(
        "--save",
        metavar="FILE.npz",
        type=Path,
        help="keep the result: `hotloop.bandits.Result.load` reads it",
    )
    _add_json(parser)
    options = _parsed(parser, args)
    if agent_class is None:
        raise ConfigError(
            "name an agent first: `hotloop bandit run AGENT …`; `hotloop bandit run --help` lists "
            "them"
        )
    given = {
        name.removeprefix("agent."): value
        for name, value in vars(options).items()
        if name.startswith("agent.") and value is not None
    }
    agent = agent_from(agent_class.name, given)
    environment = _environment(options)
    if options.save is not None and options.save.suffix != ".npz":
        raise ConfigError(f"`--save` must end in .npz, got '{options.save}'")
    kinds, pictures = _pictures(options)
    need("numba", extra="bandit", purpose="playing bandits")

    from hotloop.bandits.running import run as play

    with ProgressLine() as progress:
        result = play(
            agent,
            environment,
            num_runs=options.runs,
            num_steps=options.steps,
            seed=options.seed,
            threads=options.threads,
            arm_shares="shares" in kinds,
            on_progress=progress.show,
        )
    if not options.json:
        _print_result(result)
    if options.save is not None:
        result.save(options.save)
    _draw([result], pictures)
    if options.json:
        places = {"save": None if options.save is None else str(options.save)}
        return _print_json(result.to_dict() | places | _as_text(pictures))
    if options.save is not None:
        print(f"result: {options.save}")
    _print_pictures(pictures)
    _print_speed([result], result.elapsed_s)
    return 0


def _compare(args: list[str]) -> int:
    from hotloop.bandits.agents import AGENTS

    parser = _parser(
        "compare",
        "Play several agents in one environment on the same random numbers: the same true values, "
        "the same noise. Differences to the first agent are taken run by run, which makes their "
        "standard errors small.",
    )
    parser.add_argument(
        "agents",
        metavar="AGENT",
        nargs="+",
        help='an agent, alone or with settings: ucb, "ucb c=2", "epsilon-greedy epsilon=1/8"',
    )
    parser.epilog = f"agents (FIELD=DEFAULT):\n{_listing(AGENTS)}\n\n{parser.epilog}"
    _add_environment(parser)
    _add_sizes(parser, runs=2000, steps=1000)
    _add_pictures(parser, "bandits.png")
    _add_json(parser)
    options = _parsed(parser, args)
    agents = [_agent(text) for text in options.agents]
    environment = _environment(options)
    kinds, pictures = _pictures(options)
    need("numba", extra="bandit", purpose="playing bandits")

    from hotloop.bandits.running import compare

    with ProgressLine() as progress:
        comparison = compare(
            agents,
            environment,
            num_runs=options.runs,
            num_steps=options.steps,
            seed=options.seed,
            threads=options.threads,
            arm_shares="shares" in kinds,
            on_progress=progress.show,
        )
    if not options.json:
        _print_comparison(comparison)
    _draw(comparison.results, pictures)
    if options.json:
        return _print_json(comparison.to_dict() | _as_text(pictures))
    _print_pictures(pictures)
    _print_speed(comparison.results, comparison.elapsed_s)
    return 0


def _parser(name: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"hotloop bandit {name}",
        description="\n\n".join(textwrap.fill(part, 88) for part in about.split("\n\n")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # so that a name that is nearly right is answered, not guessed
    )
    # What argparse takes for a negative number is not -1e-3, nor -1/8.
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    parser.epilog = "Values are numbers such as 0.1, 1/128 or 2**-7, or none, true, false."
    return parser


def _add_environment(parser: argparse.ArgumentParser) -> None:
    from hotloop.bandits.environments import ENVIRONMENTS

    group = parser.add_argument_group("environment")
    group.add_argument("--environment", metavar="NAME", default="gaussian", help=_NAME_HELP)
    group.add_argument("--arms", metavar="K", type=int, help="number of arms (default: 10)")
    group.add_argument(
        "--env",
        metavar="FIELD=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="settings of the environment: spread=2, means=0.9,0.8, rewards=FILE.npy",
    )
    parser.epilog = f"environments (FIELD=DEFAULT):\n{_listing(ENVIRONMENTS)}\n\n{parser.epilog}"


_NAME_HELP = "which environment; they are listed below (default: %(default)s)"


def _add_sizes(parser: argparse.ArgumentParser, *, runs: int | None, steps: int | None) -> None:
    default = "the figure's own" if runs is None else "%(default)s"
    parser.add_argument(
        "--runs", metavar="N", type=int, default=runs, help=f"independent runs (default: {default})"
    )
    parser.add_argument(
        "--steps", metavar="N", type=int, default=steps, help=f"steps of a run (default: {default})"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of all randomness (default: %(default)s)"
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=int,
        help="how many work at once; the numbers don't depend on it (default: every core)",
    )


def _add_pictures(parser: argparse.ArgumentParser, output: str) -> None:
    kinds = "; ".join(f"{kind}: {about}" for kind, about in PICTURES.items())
    parser.add_argument(
        "--picture",
        metavar="KIND[,KIND...]",
        help=f"what to draw (default: curves if --output is given, else nothing). {kinds}",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where to: .png, .svg or .pdf; of several pictures each has its kind in its name, "
        f"as in FILE_regret.png (default: {output})",
    )
    parser.set_defaults(default_output=Path(output))


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def _parsed(parser: argparse.ArgumentParser, args: list[str]) -> argparse.Namespace:
    """Options, checked as far as they are alike in all commands.

    Raises:
        UnknownNameError: there is no such option.
        ConfigError: a number makes no sense.
    """
    options, rest = parser.parse_known_args([_dashed(arg) for arg in args])
    if rest:
        name = rest[0].split("=")[0]
        if not name.startswith("-"):
            raise ConfigError(f"`{parser.prog}` can't take '{rest[0]}' here: see its --help")
        known = [one for action in parser._actions for one in action.option_strings]
        raise UnknownNameError(
            f"`{parser.prog}` has no option '{name}'"
            + (nearest(name, known) or f"; `{parser.prog} --help` lists them")
        )
    for name in ("runs", "steps", "threads"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise ConfigError(f"`--{name}` must be positive, got {number}")
    if options.seed < 0:
        raise ConfigError(f"`--seed` must not be negative, got {options.seed}")
    return options


def _dashed(arg: str) -> str:
    """`--step_size=0.1`, as fields are spelled, is `--step-size=0.1`."""
    name, equals, value = arg.partition("=")
    return (name.replace("_", "-") if name.startswith("--") else name) + equals + value


def _agent(text: str) -> Any:
    """An agent from `"name field=value …"`."""
    from hotloop.bandits.options import agent_from

    name, *settings = text.split() or [""]
    return agent_from(name, _settings(settings, "an agent's setting"))


def _environment(options: argparse.Namespace) -> Any:
    from hotloop.bandits.environments import ENVIRONMENTS
    from hotloop.bandits.options import environment_from

    given = _settings(options.env, "`--env`")
    known = ENVIRONMENTS.get(options.environment)
    if options.arms is not None and known is not None:
        if "num_arms" not in {one.name for one in fields(known)}:
            raise ConfigError(
                f"`--arms` can't be set for '{options.environment}': it has as many arms as its "
                f"`{fields(known)[0].name}`, which `--env` gives"
            )
        given.setdefault("num_arms", str(options.arms))
    environment = environment_from(options.environment, given)
    if options.arms not in (None, environment.num_arms):
        raise ConfigError(
            f"`--arms` says {options.arms} arms, `--env` {environment.num_arms}: leave one out"
        )
    return environment


def _settings(parts: Sequence[str], what: str) -> dict[str, str]:
    given = {}
    for part in parts:
        field, equals, value = part.partition("=")
        if not (field and equals and value) or " " in field:
            raise ConfigError(f"{what} must be written FIELD=VALUE, got '{part}'")
        given[field] = value
    return given


def _pictures(options: argparse.Namespace) -> tuple[list[str], dict[str, Path]]:
    """The kinds that are asked for, and where each goes.

    Raises:
        UnknownNameError: there is no such kind.
        ConfigError: the file's suffix is not that of a picture.
        MissingExtraError: matplotlib is not installed.
    """
    if options.picture is None and options.output is None:
        return [], {}
    kinds: list[str] = list(dict.fromkeys((options.picture or "curves").split(",")))
    for kind in kinds:
        if kind not in PICTURES:
            raise UnknownNameError(
                f"expected pictures of {', '.join(PICTURES)}, got '{kind}'"
                + nearest(kind, PICTURES)
            )
    from hotloop.bandits.pictures import check_picture

    output = check_picture(options.output or options.default_output, option="--output")
    need("matplotlib", extra="bandit", purpose="drawing a picture")
    if len(kinds) == 1:
        return kinds, {kinds[0]: output}
    return kinds, {kind: output.with_stem(f"{output.stem}_{kind}") for kind in kinds}


def _draw(results: Sequence[Result], pictures: Mapping[str, Path]) -> None:
    if not pictures:
        return
    from hotloop.bandits import pictures as drawing

    draw = {
        "curves": drawing.learning_curves,
        "regret": drawing.regret_curves,
        "boxes": drawing.regret_boxes,
        "shares": drawing.arm_shares,
    }
    for kind, path in pictures.items():
        draw[kind](results, path)


def _print_figure(figure: BookFigure) -> None:
    from rich.text import Text

    rows = figure.rows
    if figure.comparison is None:
        columns = [("arm", [row.label for row in rows])]
        columns.append(("true value", [f"{row.reward.mean:.3f}" for row in rows]))
    else:
        known = [row.reference for row in rows]
        columns = [
            ("agent", [row.label for row in rows]),
            ("reward", [_plus_minus(row.reward) for row in rows]),
            ("reference", [_or_blank("{:.3f}", one and one.reward) for one in known]),
            ("optimal", [_plus_minus(row.optimal, percent=True) for row in rows]),
            (
                "reference",
                [_or_blank("{:.1f} %", one and one.optimal and 100 * one.optimal) for one in known],
            ),
            ("regret", [_or_blank("{:.3f}", row.regret) for row in rows]),
            ("reference", [_or_blank("{:.3f}", one and one.regret) for one in known]),
        ]
    columns = [(heading, cells) for heading, cells in columns if any(cells)]
    table = plain_table()
    for number, (heading, _) in enumerate(columns):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for cells in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*map(Text, cells))
    print(f"{figure.heading}\n")
    print_table(table, wide_console())
    if figure.comparison is not None:
        print(f"\nReward and regret per step, over {figure.window}; ± standard error over runs.")
    if any(row.reference for row in rows):
        print(f"Reference: computed independently {figure.plan.reference}.")


def _or_blank(style: str, value: float | None) -> str:
    return "" if value is None else style.format(value)


def _print_result(result: Result) -> None:
    table = plain_table()
    headings = ("", f"all {result.num_steps:,} steps", f"the last {result.late_steps:,}")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    mean, late = result.mean_reward, result.late_reward
    table.add_row("reward per step", _plus_minus(mean), _plus_minus(late))
    mean, late = (
        _plus_minus(one, percent=True) for one in (result.mean_optimal, result.late_optimal)
    )
    table.add_row("optimal action", mean, late)
    table.add_row("regret at the end", _plus_minus(result.final_regret), "")
    print(f"{_heading(result)}\n")
    print_table(table, wide_console())
    print("\n± standard error over runs")


def _print_comparison(comparison: Comparison) -> None:
    from rich.text import Text

    from hotloop.bandits.pictures import label_of

    results = comparison.results
    first = results[0]
    table = plain_table()
    table.add_column("agent", overflow="fold")
    for heading in ("reward", "to the first", "optimal", "final regret", "to the first"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, result in enumerate(results):
        reward, regret = (
            _plus_minus(comparison.difference(index, 0, quantity), sign=True) if index else ""
            for quantity in ("late_reward", "final_regret")
        )
        table.add_row(
            Text(label_of(result.agent)),
            _plus_minus(result.late_reward),
            reward,
            _plus_minus(result.late_optimal, percent=True),
            _plus_minus(result.final_regret),
            regret,
        )
    print(f"{_heading(first, agent=False)}\n")
    print_table(table, wide_console())
    print(
        f"\nReward per step and optimal actions over the last {first.late_steps:,} steps; "
        "± standard error over runs, of differences run by run."
    )


def _heading(result: Result, *, agent: bool = True) -> str:
    from hotloop.bandits.pictures import label_of

    who = f"{label_of(result.agent)} · " if agent else ""
    place = label_of(result.environment)
    arms = "" if "arms" in place else f", {result.environment.num_arms} arms"
    runs = f"{result.num_runs:,} runs of {result.num_steps:,} steps"
    return f"{who}{place}{arms} · {runs} · seed {result.seed}"


def _plus_minus(estimate: Estimate | None, *, percent: bool = False, sign: bool = False) -> str:
    """A mean with as many digits as its standard error has two of: `1.368 ± 0.013`."""
    if estimate is None:
        return ""
    mean, se = (100 * value for value in estimate) if percent else estimate
    if math.isnan(mean):
        return "–"
    plus = "+" if sign else ""
    unit = " %" if percent else ""
    if not se > 0:  # a single run, or runs that are all alike
        return f"{mean:{plus},.4g}{unit}"
    digits = min(max(1 - math.floor(math.log10(se)), 0), 9)
    return f"{mean:{plus},.{digits}f} ± {se:,.{digits}f}{unit}"


def _print_pictures(pictures: Mapping[str, Path]) -> None:
    for kind, path in pictures.items():
        print(f"{kind}: {path}")


def _as_text(pictures: Mapping[str, Path]) -> dict[str, Any]:
    return {"pictures": {kind: str(path) for kind, path in pictures.items()}}


def _print_speed(results: Sequence[Result], elapsed_s: float) -> None:
    """The last line: how much was done in which time."""
    first = results[0]
    run_steps = len(results) * first.num_runs * first.num_steps
    agents = f"{len(results)} agents × " if len(results) > 1 else ""
    print(
        f"{agents}{first.num_runs:,} runs × {first.num_steps:,} steps = {run_steps:,} run·steps "
        f"in {elapsed_s:,.3f} s: {elapsed_s * 1e9 / run_steps:,.1f} ns a run and step"
    )


def _print_json(content: dict[str, Any]) -> int:
    json.dump(content, sys.stdout, allow_nan=False)
    print()
    return 0


class ProgressLine:
    """How far a computation is, on a terminal's stderr, once it has taken a second."""

    def __init__(self, *, after_s: float = 1.0, interval_s: float = 0.2) -> None:
        self._started_at = time.monotonic()
        self._next_at = self._started_at + after_s
        self._interval_s = interval_s
        self._progress: Progress | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, behind: int, total: int) -> None:
        """Draw it, unless it was drawn a moment ago.

        Args:
            behind: runs' steps that are done.
            total: that there are.
        """
        now = time.monotonic()
        if now < self._next_at or not sys.stderr.isatty():
            return
        self._next_at = now + self._interval_s
        if self._progress is None:
            self._progress = _progress_bar()
            self._progress.start()
            self._progress.add_task("", total=total, speed="")
        ns_per_step = (now - self._started_at) * 1e9 / max(behind, 1)
        (task,) = self._progress.task_ids
        self._progress.update(task, completed=behind, speed=f"{ns_per_step:,.1f} ns a step")
        self._progress.refresh()


def _progress_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.completed:,} of {task.total:,} run·steps"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # no thread of its own beside those that compute
    )


def _listing(known: Mapping[str, Any]) -> str:
    """A line for each: its name, its fields and what it does."""
    lines = []
    for name, one in known.items():
        settings = " ".join(f"{field.name}={_text(field.default)}" for field in fields(one))
        about = (inspect.getdoc(one) or "").split("\n")[0]
        lines.append(f"  {name:18} {settings}" if settings else f"  {name}")
        lines.append(textwrap.fill(about, 88, initial_indent=" " * 21, subsequent_indent=" " * 21))
    return "\n".join(lines)


def _text(value: Any) -> str:
    """A field's default as it is typed."""
    if value is MISSING:
        return "FILE"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _field_docs(known: type) -> dict[str, str]:
    """The docstring under each field, which is nowhere but in the source."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(known))).body
    except (OSError, SyntaxError, ValueError):
        return {}
    docs, name = {}, None
    for node in getattr(body, "body", ()):
        if isinstance(node, ast.Expr) and name and isinstance(node.value, ast.Constant):
            docs[name] = " ".join(str(node.value.value).split())
        target = node.target if isinstance(node, ast.AnnAssign) else None
        name = target.id if isinstance(target, ast.Name) else None
    return docs
