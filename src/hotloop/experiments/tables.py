"""Results of many trainings as a table: NumPy columns, a pandas DataFrame, a Parquet file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.html_page import preformatted
from hotloop.base.parquet import write
from hotloop.base.rounding import format_number
from hotloop.errors import requires_extra
from hotloop.experiments.results import Results, Run, Trial, results_path
from hotloop.types import Array

if TYPE_CHECKING:
    import pandas

_PREFIX = "param."
_NOTEBOOK_ROWS = 20


@dataclass(frozen=True)
class ExperimentTable:
    """The results of many trainings at the time of reading.

    Attributes:
        path: the file of results, for `hotloop sweep report`.
        trials: the points of the search space, by number. 0 is the base configuration.
        runs: the trainings, sorted by trial and seed. A run has its score, state and curve.
    """

    path: Path
    trials: dict[int, Trial]
    runs: Sequence[Run]

    def __len__(self) -> int:
        return len(self.runs)

    def table(self) -> dict[str, Array]:
        """Return a column for each property of a run, with R rows, one for each run.

        Returns:
            By name, arrays of shape (R,): `trial`, `seed` and `steps` (transitions), int64;
            `score` (the maximized metric, a mean undiscounted return) and `seconds` (wall time of
            the training), float64, NaN if unknown; `state` (`done`, `pruned`, `failed` or
            `running`), `purpose` (`tune`, or `test` for fresh seeds), `reason` and `directory`,
            texts; and `param.NAME` for each option of the search space, of its values' dtype, or
            object if values have several types or a run does not set it.
        """
        columns = {name: [getattr(run, name) for run in self.runs] for name in _DTYPES}
        table = {name: np.array(columns[name], dtype) for name, dtype in _DTYPES.items()}
        options = [self.trials[run.trial].options(run.steps) for run in self.runs]
        for name in self._varied_options():
            table[_PREFIX + name] = _column([values.get(name) for values in options])
        return table

    def _repr_html_(self) -> str:
        """Return the best runs as a table for notebooks."""
        best = sorted(self.runs, key=lambda run: run.score if run.score is not None else -np.inf)
        columns = ["trial", "seed", "score", "state", *self._varied_options()]
        rows = [columns]
        for run in best[: -_NOTEBOOK_ROWS - 1 : -1]:
            options = self.trials[run.trial].options(run.steps)
            score = "" if run.score is None else format_number(run.score)
            values = [options.get(name, "") for name in columns[4:]]
            rows.append(list(map(str, (run.trial, run.seed, score, run.state, *values))))
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = [
            "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        if len(self.runs) > _NOTEBOOK_ROWS:
            lines.append(f"… and {len(self.runs) - _NOTEBOOK_ROWS} more runs")
        return preformatted("\n".join(lines))

    def _varied_options(self) -> list[str]:
        names = (name for run in self.runs for name in self.trials[run.trial].options(run.steps))
        return list(dict.fromkeys(names))

    def to_pandas(self) -> pandas.DataFrame:
        """Return `table()` as a pandas DataFrame.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with requires_extra("a DataFrame needs pandas", "pandas"):
            frames = importlib.import_module("pandas")
        return frames.DataFrame(self.table())

    def to_parquet(self, path: str | Path) -> None:
        """Write a Parquet file with a row for each run, its curve and options as JSON.

        Raises:
            MissingExtraError: pyarrow is not installed.
            OutputError: the file can't be written.
        """
        rows = [
            {**run._asdict(), "curve": json.dumps(run.curve)}
            | {
                _PREFIX + name: json.dumps(value)
                for name, value in self.trials[run.trial].options(run.steps).items()
            }
            for run in self.runs
        ]
        write(Path(path), rows)


_DTYPES: dict[str, Any] = {
    "trial": np.int64,
    "seed": np.int64,
    "steps": np.int64,
    "purpose": np.str_,
    "state": np.str_,
    "score": np.float64,
    "seconds": np.float64,
    "reason": np.str_,
    "directory": np.str_,
}


def _column(values: list[Any]) -> Array:
    """Return an array of the values' type if all have the same scalar type, else of objects."""
    kinds = set(map(type, values))
    if kinds in ({int}, {float}, {bool}, {str}):
        return np.array(values)
    column = np.empty(len(values), object)
    column[:] = [tuple(x) if isinstance(x, list) else x for x in values]
    return column


def read_table(path: str | Path) -> ExperimentTable:
    """Return the results of a file, also while its trainings run.

    Args:
        path: a file of results, or the directory of a sweep or of a group of trainings.

    Raises:
        ConfigError: there are no results, or the file is damaged.
    """
    results = Results(results_path(Path(path)))
    try:
        return table_of(results)
    finally:
        results.close()


def table_of(results: Results) -> ExperimentTable:
    """Return the content of an open file of results."""
    trials = {trial.number: trial for trial in results.trials()}
    return ExperimentTable(results.path, trials, results.runs())
