"""`hotloop compare`: compare runs by options, returns and speed, or profiles by speed."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.rounding import format_interval, format_number
from hotloop.base.streams import printable
from hotloop.base.text_tables import plain_table, print_table, wide_console
from hotloop.cli import notify
from hotloop.errors import ConfigError, ProfileError, RunDirectoryError

if TYPE_CHECKING:
    from hotloop.profiler.diagnose.comparison import ProfileComparison
    from hotloop.reports.learning_comparison import (
        Interval,
        LearningComparison,
        MetricTable,
        RunSide,
        SideResult,
    )


def run(args: list[str]) -> int:
    """Run the command. See `hotloop compare --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop compare",
        description="Compare runs, or two profiles. For runs it prints the options that differ, "
        "the interquartile mean over seeds in the last tenth of the steps that all have, its "
        "difference from A, and the speed of two runs. For profiles and saved sessions it prints "
        "what takes more or less time per environment step in B than in A. Intervals are 95 %.",
    )
    parser.add_argument(
        "sides",
        metavar="A B",
        nargs="+",
        help="two or more runs, or directories with runs of several seeds; or two profiles",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="metric of runs: return or length of training episodes, evaluation, or any logged "
        "number, such as entropy (default: return, and evaluation if the runs have it)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args(args)
    # Check the paths.
    paths = options.sides
    if len(paths) < 2:
        raise ConfigError(
            f"expected two or more runs, or two profiles, got only {paths[0]}: add what to compare "
            "it with"
        )
    for path in paths:
        if not Path(path).exists():
            raise RunDirectoryError(
                f"expected a run, a directory of runs or a profile, got {path}, which does not "
                "exist: `hotloop runs` lists the runs made here"
            )
    # Compare runs, or else two profiles.
    if all(map(_has_runs, paths)):
        return _compare_runs(list(map(Path, paths)), options)
    if len(paths) > 2 or options.metric is not None:
        other = next(path for path in paths if not _has_runs(path))
        feature = "a comparison of more than two" if len(paths) > 2 else "`--metric`"
        raise ConfigError(
            f"{feature} needs run directories, got {other}, which has no config.json of a run: "
            "pass only run directories, or two profiles"
        )
    speed = _speed(*paths)
    if options.json:
        _print_json({"speed": _speed_to_json(speed)})
    else:
        _print_speed(speed)
    return 0


def _has_runs(path: str) -> bool:
    """Return whether the path is a run or a directory of runs, and no profile."""
    from hotloop.profiler.session.reading import METADATA_FILE
    from hotloop.runs.summary import find_runs

    directory = Path(path)
    return (
        directory.is_dir()
        and not (directory / METADATA_FILE).exists()
        and bool(find_runs(directory))
    )


def _compare_runs(paths: list[Path], options: argparse.Namespace) -> int:
    from hotloop.reports.learning_comparison import compare_learning, load_sides

    sides = load_sides(paths)
    result = compare_learning(sides, metric=options.metric)
    speed = None
    if len(sides) == 2 and all(len(side.runs) == 1 for side in sides):
        try:
            speed = _speed(*(next(iter(side.runs)) for side in sides))
        except ProfileError as error:
            result.notes.append(f"speed is not compared: {error}")
    elif len(sides) == 2:
        result.notes.append("speed is not compared: it needs one run on each side")
    if options.json:
        _print_json(_to_json(result, speed))
        return 0
    for side in sides:
        print(_heading(side))
    _print_options(result)
    for table in result.tables:
        _print_table(table)
    for letter, (share, band) in result.improvement.items():
        print(f"\nP({letter} > A) over all environments: {_percent(share, band)}")
    if speed is not None:
        print()
        _print_speed(speed)
    if result.notes:
        sys.stdout.flush()
        for note in result.notes:
            notify(note)
    return 0


def _speed(a: str | Path, b: str | Path) -> ProfileComparison:
    from hotloop.profiler.diagnose.comparison import compare
    from hotloop.profiler.session.reading import read

    return compare(read(a), read(b))


def _print_speed(speed: ProfileComparison) -> None:
    from hotloop.profiler.render.comparison import render

    print(render(speed))


def _heading(side: RunSide) -> str:
    contents = side.runs.values()
    algorithms = sorted({content["algorithm"] for content in contents})
    seeds = sorted({content["config"]["seed"] for content in contents})
    runs = f"{len(side.runs)} runs" if len(side.runs) > 1 else "a run"
    subject = f"{', '.join(algorithms)} {', '.join(side.env_ids)}"
    seed_text = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return f"{side.letter}  {side.path}: {subject}, {runs}, {seed_text}"


def _print_options(result: LearningComparison) -> None:
    from rich.text import Text

    if not result.options:
        print("\nall options are equal")
        return
    table = plain_table()
    table.add_column("option", overflow="fold")
    for side in result.sides:
        table.add_column(side.letter, overflow="fold")
    for name, values in result.options.items():
        table.add_row(Text(printable(name)), *(Text(printable(x) or "–") for x in values))
    print()
    print_table(table, wide_console())


def _print_table(section: MetricTable) -> None:
    from hotloop.reports.run_groups import METRIC_LABELS

    table = plain_table()
    table.add_column("")
    headings = ["seeds", "last tenth", "to A", "P(> A)"]
    if section.level is not None:
        headings.append(f"steps to {format_number(section.level)}")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in section.rows:
        table.add_row(*_cells(row, has_level=section.level is not None))
    name = METRIC_LABELS.get(section.metric, section.metric)
    print(f"\n{printable(section.env_id)}: {printable(name)}, at {section.end:,.0f} steps")
    print_table(table, wide_console())


def _cells(row: SideResult, *, has_level: bool) -> list[str]:
    cells = [row.letter, str(len(row.seeds)), format_interval(row.middle, row.band)]
    if row.difference is None:
        cells += ["", ""]
    else:
        cells.append(format_interval(row.difference, row.difference_band, sign="+"))
        cells.append(_percent(row.improvement, row.improvement_band))
    if has_level:
        cells.append("–" if row.steps_to is None else f"{row.steps_to:,.0f}")
    return [*cells, row.verdict]


def _percent(share: float | None, band: Interval) -> str:
    if share is None:  # A itself
        return "–"
    return f"{share:.0%}" if band is None else f"{share:.0%} ({band[0]:.0%} to {band[1]:.0%})"


# --- JSON -----------------------------------------------------------------------------------------


def _to_json(result: LearningComparison, speed: ProfileComparison | None) -> dict[str, Any]:
    return {
        "sides": [
            {
                "name": side.letter,
                "path": str(side.path),
                "env_ids": side.env_ids,
                "runs": [str(path) for path in side.runs],
                "seeds": sorted({content["config"]["seed"] for content in side.runs.values()}),
            }
            for side in result.sides
        ],
        "options": {
            name: dict(zip((side.letter for side in result.sides), values, strict=True))
            for name, values in result.options.items()
        },
        "learning": [
            {**vars(table), "rows": [{**vars(row), "verdict": row.verdict} for row in table.rows]}
            for table in result.tables
        ],
        "improvement": {
            name: {"mean": share, "interval": band}
            for name, (share, band) in result.improvement.items()
        },
        "speed": None if speed is None else _speed_to_json(speed),
        "notes": result.notes,
    }


def _speed_to_json(speed: ProfileComparison) -> dict[str, Any]:
    """Return the fields of a comparison, with rows as objects instead of arrays."""
    rows = {"stages": speed.stages, "spans": speed.spans}
    return {
        **vars(speed),
        "a": speed.a._asdict(),
        "b": speed.b._asdict(),
        "overall": None if speed.overall is None else _row(speed.overall),
        **{name: [_row(row) for row in group] for name, group in rows.items()},
    }


def _row(row: Any) -> dict[str, Any]:
    return {**row._asdict(), "a": row.a._asdict(), "b": row.b._asdict()}


def _print_json(value: Any) -> None:
    json.dump(_finite(value), sys.stdout)
    print()


def _finite(value: Any) -> Any:
    """Return the value with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value
