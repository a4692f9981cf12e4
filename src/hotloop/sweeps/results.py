"""Results of a sweep: one SQLite file that any number of processes write, and that outlives kills.

A trial is a point of the space; a run is a training of it with a seed and a budget. Trial 0 is the
configuration that all others change. What is written is on the disk when the call returns.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.errors import ConfigError, HotloopError
from hotloop.sweeps.file import ResultsFile
from hotloop.sweeps.parquet import write
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
# A run whose process died is tried so often: something else may have killed it.
MAX_TRIES = 2


class Trial(NamedTuple):
    """A point of the space.

    Attributes:
        number: 0 has no options of its own.
        params: its options.
        attrs: what a sampler wants to know of it again, and what its options have become.
    """

    number: int
    params: dict[str, Any]
    attrs: dict[str, Any]

    def became(self, steps: int) -> dict[str, Any]:
        """Return its options; those that changed while it trained, as the schedules they were.

        Args:
            steps: of its training.
        """
        return {**self.params, **self.attrs.get("became", {}).get(str(steps), {})}


class Run(NamedTuple):
    """A training of a trial.

    Attributes:
        trial, seed, steps: which.
        purpose: `tune`, or `test` for seeds that nothing is chosen by.
        state: `running`, `done`, `pruned`, `failed`.
        score: what is maximised; None: not known.
        reason: why it failed or was pruned.
        seconds: of the training.
        curve: pairs of transitions and score, as they were reported.
        directory: of the run.
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


_RUN = "trial, seed, steps, purpose, state, score, reason, seconds, curve, directory"


class Results(ResultsFile):
    """Trials and runs of a sweep."""

    kind, error = "sweep", ConfigError
    about, marks, tables = "sweep", {"format": "1"}, _TABLES

    def __init__(self, path: Path) -> None:
        self.owner = f"{boot_id()}:{os.getpid()}:{process_start(os.getpid())}"
        super().__init__(path)

    def close(self) -> None:
        """Close the file, and leave the sweep."""
        with contextlib.suppress(HotloopError), self._transaction():
            self._sqlite.execute("DELETE FROM owners WHERE owner = ?", (self.owner,))
        self._sqlite.close()

    # --- the sweep --------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """Return what is known of the sweep by a name; None: nothing."""
        rows = self._rows("SELECT value FROM sweep WHERE name = ?", (name,))
        return json.loads(rows[0][0]) if rows else None

    def set(self, name: str, value: Any) -> None:
        """Keep something of the sweep, as JSON."""
        row = name, json.dumps(value)
        with self._transaction():
            self._sqlite.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", row)

    def enter(self, *, may_join: bool) -> None:
        """Begin to work on the sweep.

        Args:
            may_join: whether others may be at it.

        Raises:
            ConfigError: others are.
        """
        with self._transaction():
            for (owner,) in self._sqlite.execute("SELECT owner FROM owners").fetchall():
                if owner == self.owner:
                    continue
                if not is_alive(owner):
                    self._sqlite.execute("DELETE FROM owners WHERE owner = ?", (owner,))
                elif not may_join:
                    raise ConfigError(
                        f"process {owner.split(':')[1]} is at the sweep of {self.path}: wait, or "
                        "pass `--join` to work on it side by side"
                    )
            self._sqlite.execute("INSERT OR REPLACE INTO owners VALUES (?)", (self.owner,))

    # --- trials -----------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return all, by number."""
        rows = self._rows("SELECT number, params, attrs FROM trials ORDER BY number")
        return [Trial(n, json.loads(params), json.loads(attrs)) for n, params, attrs in rows]

    def add_trial(self, number: int, params: Mapping[str, Any], attrs: Mapping[str, Any]) -> bool:
        """Keep a trial; False: another process has had that number before."""
        with self._transaction():
            there = self._sqlite.execute("SELECT 1 FROM trials WHERE number = ?", (number,))
            if there.fetchone():
                return False
            row = number, json.dumps(params), json.dumps(attrs)
            self._sqlite.execute("INSERT INTO trials VALUES (?, ?, ?)", row)
        return True

    def note(self, number: int, attrs: Mapping[str, Any]) -> None:
        """Keep more of a trial."""
        with self._transaction():
            where = "FROM trials WHERE number = ?"
            (before,) = self._sqlite.execute(f"SELECT attrs {where}", (number,)).fetchone()
            text = json.dumps({**json.loads(before), **attrs})
            self._sqlite.execute("UPDATE trials SET attrs = ? WHERE number = ?", (text, number))

    # --- runs -------------------------------------------------------------------------------------

    def runs(self, purpose: str | None = None) -> list[Run]:
        """Return all, or those of a purpose, by trial and seed."""
        rows = self._rows(f"SELECT {_RUN} FROM runs ORDER BY trial, seed, steps")
        found = [Run._make((*row[:8], json.loads(row[8]), row[9])) for row in rows]
        return [one for one in found if purpose in (None, one.purpose)]

    def claim(
        self, trial: int, seed: int, steps: int, purpose: str, version: str, directory: str
    ) -> bool:
        """Take a run over; False: it is done, or others are at it."""
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
                if owner != self.owner:  # its sweep was killed: that is nothing of the run's own
                    tries = 0
            self._sqlite.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, 'running', ?, ?, NULL, '', "
                "NULL, '[]', ?)",
                (trial, seed, steps, purpose, version, self.owner, tries + 1, directory),
            )
        return True

    def tries(self, trial: int, seed: int, steps: int, purpose: str) -> int:
        """Return how often a run was begun by this process."""
        rows = self._rows(
            "SELECT tries FROM runs WHERE trial = ? AND seed = ? AND steps = ? AND purpose = ?",
            (trial, seed, steps, purpose),
        )
        return rows[0][0] if rows else 0

    def finish(self, run: Run) -> None:
        """Keep what has come of a run."""
        with self._transaction():
            self._sqlite.execute(
                "UPDATE runs SET state = ?, score = ?, reason = ?, seconds = ?, curve = ? "
                "WHERE trial = ? AND seed = ? AND steps = ? AND purpose = ?",
                (
                    *(run.state, run.score, run.reason, run.seconds, json.dumps(run.curve)),
                    *(run.trial, run.seed, run.steps, run.purpose),
                ),
            )

    def forget(self, steps: int) -> None:
        """Forget all runs with a budget: they are made again."""
        with self._transaction():
            self._sqlite.execute("DELETE FROM runs WHERE steps = ?", (steps,))

    def export(self, path: Path) -> None:
        """Write a row for each run, with its trial's options: Parquet.

        Raises:
            MissingExtraError: pyarrow is not installed.
            OutputError: the file can't be written.
        """
        trials = {trial.number: trial for trial in self.trials()}
        rows = [
            {**one._asdict(), "curve": json.dumps(one.curve)}
            | {f"param.{n}": json.dumps(x) for n, x in trials[one.trial].became(one.steps).items()}
            for one in self.runs()
        ]
        write(path, rows)


def is_alive(owner: str) -> bool:
    """Whether the process of that name runs on this machine."""
    boot, pid, start = owner.split(":")
    return boot == boot_id() and int(start) != 0 and process_start(int(pid)) == int(start)
