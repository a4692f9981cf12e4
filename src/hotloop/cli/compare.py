"""`hotloop compare`: runs by options, learning and speed; profiles by speed; with intervals."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cli import tell
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import ConfigError, ProfileError, RunDirectoryError

if TYPE_CHECKING:
    from hotloop.profiler.diagnose.comparison import Comparison
    from hotloop.runs.learned_differences import Interval, Learned, Learning, Side, Table


def run(args: list[str]) -> int:
    """Compare; see `hotloop compare --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop compare",
        description="Of runs: which options differ, what each has learned in the last tenth of the "
        "steps that all have (interquartile mean over seeds), how far from A, and how fast two of "
        "them are. Of profiles and saved sessions: what takes more or less time in B than in A, "
        "per environment step. Intervals hold 95 %.",
    )
    parser.add_argument(
        "sides",
        metavar="A B",
        nargs="+",
        help="a run, or a directory of runs of several seeds, two or more; or two profiles",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="of runs: return or length of training episodes, evaluation, or any number that they "
        "log, such as entropy (default: return, and evaluation where there are any)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args(args)
    given = options.sides
    if len(given) < 2:
        raise ConfigError(
            f"two runs or profiles or more are compared, got {given[0]} alone: name what to "
            "compare it with"
        )
    for path in given:
        if not Path(path).exists():
            raise RunDirectoryError(
                f"expected a run, a directory of runs or a profile, got {path}, which does not "
                "exist: `hotloop runs` lists the runs made here"
            )
    if all(map(_is_of_runs, given)):
        return _compare_runs(list(map(Path, given)), options)
    if len(given) > 2 or options.metric is not None:
        other = next(path for path in given if not _is_of_runs(path))
        what = "more than two" if len(given) > 2 else "`--metric`"
        raise ConfigError(
            f"{what} can be compared of runs alone, got {other}, which has no config.json of a "
            "run: name run directories, or two profiles"
        )
    speed = _speed(*given)
    if options.json:
        _print_json({"speed": _speed_to_json(speed)})
    else:
        _print_speed(speed)
    return 0


def _is_of_runs(path: str) -> bool:
    """Whether it is a run, or a directory of runs, and no profile."""
    from hotloop.profiler.session.reading import ABOUT
    from hotloop.runs.summary import find_runs

    directory = Path(path)
    return directory.is_dir() and not (directory / ABOUT).exists() and bool(find_runs(directory))


def _compare_runs(paths: list[Path], options: argparse.Namespace) -> int:
    from hotloop.runs.learned_differences import learning, sides_of

    sides = sides_of(paths)
    found = learning(sides, metric=options.metric)
    speed = None
    if len(sides) == 2 and all(len(side.runs) == 1 for side in sides):
        try:
            speed = _speed(*(next(iter(side.runs)) for side in sides))
        except ProfileError as error:
            found.notes.append(f"speed is not compared: {error}")
    elif len(sides) == 2:
        found.notes.append("speed is compared of two runs: name one of each side")
    if options.json:
        _print_json(_to_json(found, speed))
        return 0
    for side in sides:
        print(_heading(side))
    _print_options(found)
    for table in found.tables:
        _print_table(table)
    for letter, (share, band) in found.improvement.items():
        print(f"\nP({letter} > A) over all environments: {_percent(share, band)}")
    if speed is not None:
        print()
        _print_speed(speed)
    if found.notes:
        sys.stdout.flush()
        for note in found.notes:
            tell(note)
    return 0


def _speed(a: str | Path, b: str | Path) -> Comparison:
    from hotloop.profiler.diagnose.comparison import compare
    from hotloop.profiler.session.reading import read

    return compare(read(a), read(b))


def _print_speed(speed: Comparison) -> None:
    from hotloop.profiler.render.comparison import render

    print(render(speed))


def _heading(side: Side) -> str:
    contents = side.runs.values()
    algorithms = sorted({content["algorithm"] for content in contents})
    seeds = sorted({content["config"]["seed"] for content in contents})
    runs = f"{len(side.runs)} runs" if len(side.runs) > 1 else "a run"
    what = f"{', '.join(algorithms)} {', '.join(side.env_ids)}"
    told = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return f"{side.letter}  {side.path}: {what}, {runs}, {told}"


def _print_options(found: Learning) -> None:
    from rich.text import Text

    if not found.options:
        print("\nno option differs")
        return
    table = plain_table()
    table.add_column("option", overflow="fold")
    for side in found.sides:
        table.add_column(side.letter, overflow="fold")
    for name, values in found.options.items():
        table.add_row(Text(_printable(name)), *(Text(_printable(x) or "–") for x in values))
    print()
    print_table(table, wide_console())


def _print_table(found: Table) -> None:
    from hotloop.runs.comparison import NAMES

    table = plain_table()
    table.add_column("")
    headings = ["seeds", "last tenth", "to A", "P(> A)"]
    if found.level is not None:
        headings.append(f"steps to {_number(found.level)}")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in found.rows:
        table.add_row(*_cells(row, has_level=found.level is not None))
    name = NAMES.get(found.metric, found.metric)
    print(f"\n{_printable(found.env_id)}: {_printable(name)}, at {found.end:,.0f} steps")
    print_table(table, wide_console())


def _cells(row: Learned, *, has_level: bool) -> list[str]:
    cells = [row.letter, str(len(row.seeds)), _interval(row.middle, row.band)]
    if row.difference is None:
        cells += ["", ""]
    else:
        cells.append(_interval(row.difference, row.difference_band, sign="+"))
        cells.append(_percent(row.improvement, row.improvement_band))
    if has_level:
        cells.append("–" if row.steps_to is None else f"{row.steps_to:,.0f}")
    return [*cells, row.verdict]


def _interval(middle: float, band: Interval, *, sign: str = "") -> str:
    told = _number(middle, sign)
    return (
        told if band is None else f"{told} ({_number(band[0], sign)} to {_number(band[1], sign)})"
    )


def _number(value: float, sign: str = "") -> str:
    if math.isnan(value):
        return "–"
    return format(value, sign + (",.1f" if abs(value) >= 10 else ".4g"))


def _percent(share: float | None, band: Interval) -> str:
    if share is None:  # of A itself
        return "–"
    return f"{share:.0%}" if band is None else f"{share:.0%} ({band[0]:.0%} to {band[1]:.0%})"


def _printable(text: str) -> str:
    """A text of a file that somebody else may have written."""
    return "".join(x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in text)


# --- JSON -----------------------------------------------------------------------------------------


def _to_json(found: Learning, speed: Comparison | None) -> dict[str, Any]:
    return {
        "sides": [
            {
                "name": side.letter,
                "path": str(side.path),
                "env_ids": side.env_ids,
                "runs": [str(path) for path in side.runs],
                "seeds": sorted({one["config"]["seed"] for one in side.runs.values()}),
            }
            for side in found.sides
        ],
        "options": {
            name: dict(zip((side.letter for side in found.sides), values, strict=True))
            for name, values in found.options.items()
        },
        "learning": [
            {**vars(table), "rows": [{**vars(row), "verdict": row.verdict} for row in table.rows]}
            for table in found.tables
        ],
        "improvement": {
            name: {"mean": share, "interval": band}
            for name, (share, band) in found.improvement.items()
        },
        "speed": None if speed is None else _speed_to_json(speed),
        "notes": found.notes,
    }


def _speed_to_json(speed: Comparison) -> dict[str, Any]:
    """Its fields, whose rows are objects, not arrays."""
    rows = {"stages": speed.stages, "spans": speed.spans}
    return {
        **vars(speed),
        "a": speed.a._asdict(),
        "b": speed.b._asdict(),
        "overall": None if speed.overall is None else _row(speed.overall),
        **{name: [_row(row) for row in found] for name, found in rows.items()},
    }


def _row(row: Any) -> dict[str, Any]:
    return {**row._asdict(), "a": row.a._asdict(), "b": row.b._asdict()}


def _print_json(value: Any) -> None:
    json.dump(_finite(value), sys.stdout)
    print()


def _finite(value: Any) -> Any:
    """The same with null for NaN and infinity, for which JSON has no word."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(one) for one in value]
    return value
