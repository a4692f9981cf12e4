"""Results of a sweep in one SQLite file that many processes can write, and that survives kills.

A trial is a point of the search space. A run is one training of it, with a seed and a number of
steps. Trial 0 is the base configuration. Each method that writes returns after its transaction.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.errors import ConfigError, HotloopError
from hotloop.sweeps.parquet import write
from hotloop.sweeps.results_file import ResultsFile
from hotloop.system.processes import boot_id, process_start

_TABLES = """
CREATE TABLE sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (number INTEGER PRIMARY KEY, params TEXT NOT NULL, attrs TEXT NOT NULL);
CREATE TABLE runs (
    trial INTEGER NOT NULL, seed INTEGER NOT NULL, steps INTEGER NOT NULL, purpose TEXT NOT NULL,
    version TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL, tries INTEGER NOT NULL,
    score REAL, reason TEXT NOT NULL, seconds REAL, curve TEXT NOT NULL, directory TEXT NOT NULL,
    PRIMARY KEY (trial, seed, steps, purpose)
);
CREATE TABLE owners (owner TEXT PRIMARY KEY);
"""
# Number of attempts at a run whose process dies, since something else may have killed it.
MAX_TRIES = 2


class Trial(NamedTuple):
    """A point of the search space.

    Attributes:
        number: 0 is the base configuration, without options.
        params: option → value.
        attrs: data of the sampler, and final values of options that changed during training.
    """

    number: int
    params: dict[str, Any]
    attrs: dict[str, Any]

    def options(self, steps: int) -> dict[str, Any]:
        """Return the options, with schedules for those that changed during training.

        Args:
            steps: number of steps of the training.
        """
        return {**self.params, **self.attrs.get("became", {}).get(str(steps), {})}


class Run(NamedTuple):
    """A training of a trial.

    Attributes:
        trial, seed, steps: number of the trial, seed and number of steps.
        purpose: `tune`, or `test` for fresh seeds, which no choice depends on.
        state: `running`, `done`, `pruned` or `failed`.
        score: the maximized metric, None if unknown.
        reason: why the run failed or was pruned.
        seconds: duration of the training.
        curve: reported pairs of transitions and score.
        directory: path of the run directory.
    """

    trial: int
    seed: int
    steps: int
    purpose: str
    state: str
    score: float | None
    reason: str
    seconds: float | None
    curve: list[tuple[int, float]]
    directory: str


_RUN_COLUMNS = "trial, seed, steps, purpose, state, score, reason, seconds, curve, directory"


class Results(ResultsFile):
    """The file with the trials and runs of a sweep."""

    kind, error = "sweep", ConfigError
    info_table, marks, tables = "sweep", {"format": "1"}, _TABLES

    def __init__(self, path: Path) -> None:
        self.owner = f"{boot_id()}:{os.getpid()}:{process_start(os.getpid())}"
        super().__init__(path)

    def close(self) -> None:
        """Unregister this process, and close the file."""
        with contextlib.suppress(HotloopError), self._transaction():
            self._sqlite.execute("DELETE FROM owners WHERE owner = ?", (self.owner,))
        self._sqlite.close()

    # --- the sweep --------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """Return a setting of the sweep, None if it is not stored."""
        rows = self._rows("SELECT value FROM sweep WHERE name = ?", (name,))
        return json.loads(rows[0][0]) if rows else None

    def set(self, name: str, value: Any) -> None:
        """Store a setting of the sweep as JSON."""
        row = name, json.dumps(value)
        with self._transaction():
            self._sqlite.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", row)

    def enter(self, *, may_join: bool) -> None:
        """Register this process as an owner of the sweep.

        Args:
            may_join: whether other processes may run the sweep at the same time.

        Raises:
            ConfigError: another process runs the sweep.
        """
        with self._transaction():
            for (owner,) in self._sqlite.execute("SELECT owner FROM owners").fetchall():
                if owner == self.owner:
                    continue
                if not is_alive(owner):
                    self._sqlite.execute("DELETE FROM owners WHERE owner = ?", (owner,))
                elif not may_join:
                    raise ConfigError(
                        f"process {owner.split(':')[1]} is running the sweep of {self.path}: "
                        "wait for it, or pass `--join` to share its trials"
                    )
            self._sqlite.execute("INSERT OR REPLACE INTO owners VALUES (?)", (self.owner,))

    # --- trials -----------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return all trials, sorted by number."""
        rows = self._rows("SELECT number, params, attrs FROM trials ORDER BY number")
        return [Trial(n, json.loads(params), json.loads(attrs)) for n, params, attrs in rows]

    def add_trial(self, number: int, params: Mapping[str, Any], attrs: Mapping[str, Any]) -> bool:
        """Store a trial. Return False if another process has already stored this number."""
        with self._transaction():
            cursor = self._sqlite.execute("SELECT 1 FROM trials WHERE number = ?", (number,))
            if cursor.fetchone():
                return False
            row = number, json.dumps(params), json.dumps(attrs)
            self._sqlite.execute("INSERT INTO trials VALUES (?, ?, ?)", row)
        return True

    def update_attrs(self, number: int, attrs: Mapping[str, Any]) -> None:
        """Add attributes to a trial."""
        with self._transaction():
            where = "FROM trials WHERE number = ?"
            (old_text,) = self._sqlite.execute(f"SELECT attrs {where}", (number,)).fetchone()
            text = json.dumps({**json.loads(old_text), **attrs})
            self._sqlite.execute("UPDATE trials SET attrs = ? WHERE number = ?", (text, number))

    # --- runs -------------------------------------------------------------------------------------

    def runs(self, purpose: str | None = None) -> list[Run]:
        """Return all runs, or those of a purpose, sorted by trial and seed."""
        rows = self._rows(f"SELECT {_RUN_COLUMNS} FROM runs ORDER BY trial, seed, steps")
        runs = [Run._make((*row[:8], json.loads(row[8]), row[9])) for row in rows]
        return [run for run in runs if purpose in (None, run.purpose)]

    def claim(
        self, trial: int, seed: int, steps: int, purpose: str, version: str, directory: str
    ) -> bool:
        """Claim a run. Return False if it is finished, or claimed by another running process."""
        with self._transaction():
            row = self._sqlite.execute(
                "SELECT state, owner, tries FROM runs WHERE trial = ? AND seed = ? AND steps = ? "
                "AND purpose = ?",
                (trial, seed, steps, purpose),
            ).fetchone()
            tries = 0
            if row is not None:
                state, owner, tries = row
                if state != "running" or (owner != self.owner and is_alive(owner)):
                    return False
                if owner != self.owner:  # its sweep was killed, which is not the run's failure
                    tries = 0
            self._sqlite.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, 'running', ?, ?, NULL, '', "
                "NULL, '[]', ?)",
                (trial, seed, steps, purpose, version, self.owner, tries + 1, directory),
            )
        return True

    def tries(self, trial: int, seed: int, steps: int, purpose: str) -> int:
        """Return how often this process has started a run."""
        rows = self._rows(
            "SELECT tries FROM runs WHERE trial = ? AND seed = ? AND steps = ? AND purpose = ?",
            (trial, seed, steps, purpose),
        )
        return rows[0][0] if rows else 0

    def finish(self, run: Run) -> None:
        """Store the outcome of a run."""
        with self._transaction():
            self._sqlite.execute(
                "UPDATE runs SET state = ?, score = ?, reason = ?, seconds = ?, curve = ? "
                "WHERE trial = ? AND seed = ? AND steps = ? AND purpose = ?",
                (
                    *(run.state, run.score, run.reason, run.seconds, json.dumps(run.curve)),
                    *(run.trial, run.seed, run.steps, run.purpose),
                ),
            )

    def delete_runs(self, steps: int) -> None:
        """Delete all runs with this number of steps."""
        with self._transaction():
            self._sqlite.execute("DELETE FROM runs WHERE steps = ?", (steps,))

    def export(self, path: Path) -> None:
        """Write a Parquet file with a row for each run, including its trial's options.

        Raises:
            MissingExtraError: pyarrow is not installed.
            OutputError: the file can't be written.
        """
        trials = {trial.number: trial for trial in self.trials()}
        rows = [
            {**run._asdict(), "curve": json.dumps(run.curve)}
            | {f"param.{n}": json.dumps(x) for n, x in trials[run.trial].options(run.steps).items()}
            for run in self.runs()
        ]
        write(path, rows)


def is_alive(owner: str) -> bool:
    """Return whether an owner, as stored in the file, is a running process on this machine."""
    boot, pid, start = owner.split(":")
    return boot == boot_id() and int(start) != 0 and process_start(int(pid)) == int(start)
