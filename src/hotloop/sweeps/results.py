"""Results of a sweep: one SQLite file that any number of processes write, and that outlives kills.

A trial is a point of the space; a run is a training of it with a seed and a budget. Trial 0 is the
configuration that all others change. What is written is on the disk when the call returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.errors import ConfigError
from hotloop.system.processes import boot_id, process_start

VERSION = 1
_TIMEOUT_S = 60.0
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

    @property
    def became(self) -> dict[str, Any]:
        """Its options, those that changed while it trained as the schedules that they were."""
        return {**self.params, **self.attrs.get("became", {})}


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


class Results:
    """Trials and runs of a sweep.

    Args:
        path: of the file.

    Raises:
        ConfigError: it is no sweep's, of another version, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = f"{boot_id()}:{os.getpid()}:{process_start(os.getpid())}"
        try:
            is_new = not path.exists() or path.stat().st_size == 0
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            with self._whole():
                found = self._file.execute("SELECT name FROM sqlite_master").fetchall()
                if is_new and not found:
                    for statement in _TABLES.split(";"):
                        self._file.execute(statement)
                    self._set("format", VERSION)
            version = self.get("format")
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"{path} is no file of a sweep, or is damaged ({error}): name another one, or move "
                "it away"
            ) from error
        if version != VERSION:
            raise ConfigError(
                f"{path} is a sweep's of format {version}, expected {VERSION}: it was written by "
                "another version of hotloop; take that one, or another file"
            )

    def close(self) -> None:
        """Close the file, and leave the sweep."""
        with contextlib.suppress(sqlite3.Error):
            self._file.execute("DELETE FROM owners WHERE owner = ?", (self.owner,))
            self._file.close()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """All of it is written, or nothing; nobody else writes meanwhile."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    # --- the sweep --------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """Return what is known of the sweep by a name; None: nothing."""
        row = self._file.execute("SELECT value FROM sweep WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set(self, name: str, value: Any) -> None:
        """Keep something of the sweep, as JSON."""
        with self._whole():
            self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        self._file.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", (name, json.dumps(value)))

    def enter(self, *, may_join: bool) -> None:
        """Begin to work on the sweep.

        Args:
            may_join: whether others may be at it.

        Raises:
            ConfigError: others are.
        """
        with self._whole():
            for (owner,) in self._file.execute("SELECT owner FROM owners").fetchall():
                if owner == self.owner:
                    continue
                if not is_alive(owner):
                    self._file.execute("DELETE FROM owners WHERE owner = ?", (owner,))
                elif not may_join:
                    raise ConfigError(
                        f"process {owner.split(':')[1]} is at the sweep of {self.path}: wait, or "
                        "pass `--join` to work on it side by side"
                    )
            self._file.execute("INSERT OR REPLACE INTO owners VALUES (?)", (self.owner,))

    # --- trials -----------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return all, by number."""
        rows = self._file.execute("SELECT number, params, attrs FROM trials ORDER BY number")
        return [Trial(n, json.loads(params), json.loads(attrs)) for n, params, attrs in rows]

    def add_trial(self, number: int, params: Mapping[str, Any], attrs: Mapping[str, Any]) -> bool:
        """Keep a trial; False: another process has had that number before."""
        with self._whole():
            there = self._file.execute("SELECT 1 FROM trials WHERE number = ?", (number,))
            if there.fetchone():
                return False
            row = number, json.dumps(params), json.dumps(attrs)
            self._file.execute("INSERT INTO trials VALUES (?, ?, ?)", row)
        return True

    def note(self, number: int, attrs: Mapping[str, Any]) -> None:
        """Keep more of a trial."""
        with self._whole():
            where = "FROM trials WHERE number = ?"
            (before,) = self._file.execute(f"SELECT attrs {where}", (number,)).fetchone()
            text = json.dumps({**json.loads(before), **attrs})
            self._file.execute("UPDATE trials SET attrs = ? WHERE number = ?", (text, number))

    # --- runs -------------------------------------------------------------------------------------

    def runs(self, purpose: str | None = None) -> list[Run]:
        """Return all, or those of a purpose, by trial and seed."""
        rows = self._file.execute(f"SELECT {_RUN} FROM runs ORDER BY trial, seed, steps")
        found = [Run._make((*row[:8], json.loads(row[8]), row[9])) for row in rows]
        return [one for one in found if purpose in (None, one.purpose)]

    def claim(
        self, trial: int, seed: int, steps: int, purpose: str, version: str, directory: str
    ) -> bool:
        """Take a run over; False: it is done, or others are at it."""
        with self._whole():
            row = self._file.execute(
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
            self._file.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, 'running', ?, ?, NULL, '', "
                "NULL, '[]', ?)",
                (trial, seed, steps, purpose, version, self.owner, tries + 1, directory),
            )
        return True

    def tries(self, trial: int, seed: int, steps: int, purpose: str) -> int:
        """Return how often a run was begun by this process."""
        row = self._file.execute(
            "SELECT tries FROM runs WHERE trial = ? AND seed = ? AND steps = ? AND purpose = ?",
            (trial, seed, steps, purpose),
        ).fetchone()
        return 0 if row is None else row[0]

    def finish(self, run: Run) -> None:
        """Keep what has come of a run."""
        with self._whole():
            self._file.execute(
                "UPDATE runs SET state = ?, score = ?, reason = ?, seconds = ?, curve = ? "
                "WHERE trial = ? AND seed = ? AND steps = ? AND purpose = ?",
                (
                    *(run.state, run.score, run.reason, run.seconds, json.dumps(run.curve)),
                    *(run.trial, run.seed, run.steps, run.purpose),
                ),
            )

    def forget(self, steps: int) -> None:
        """Forget all runs of tuning with a budget: they are made again."""
        with self._whole():
            self._file.execute("DELETE FROM runs WHERE purpose = 'tune' AND steps = ?", (steps,))

    def export(self, path: Path) -> None:
        """Write a row for each run, with its trial's options: Parquet.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        from hotloop.errors import MissingExtraError

        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtraError(
                f"Parquet needs pyarrow ({error}): pip install 'hotloop[parquet]'"
            ) from error
        params = {trial.number: trial.params for trial in self.trials()}
        rows = [
            {**one._asdict(), "curve": json.dumps(one.curve)}
            | {f"param.{name}": json.dumps(x) for name, x in params[one.trial].items()}
            for one in self.runs()
        ]
        names: dict[str, None] = {}
        for row in rows:
            names |= dict.fromkeys(row)
        columns: dict[str, Sequence[Any]] = {n: [row.get(n) for row in rows] for n in names}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)


def is_alive(owner: str) -> bool:
    """Whether the process of that name runs on this machine."""
    boot, pid, start = owner.split(":")
    return boot == boot_id() and int(start) != 0 and process_start(int(pid)) == int(start)
