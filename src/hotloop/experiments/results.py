"""Results of a sweep in one SQLite file that many processes can write, and that survives kills.

A trial is a point of the search space. A run is one training of it, with a seed and a number of
steps. Trial 0 is the base configuration. Each method that writes returns after its transaction.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hotloop import __version__
from hotloop.base import documents
from hotloop.base.files import make_directory
from hotloop.base.parquet import write
from hotloop.base.processes import boot_id, is_running, process_start
from hotloop.base.results_file import ResultsFile, checksum
from hotloop.base.streams import printable
from hotloop.errors import ConfigError, HotloopError
from hotloop.runs import trust

# The last column of each row is a checksum of the others.
_TABLES = """
CREATE TABLE sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL, crc32 INTEGER);
CREATE TABLE trials (
    number INTEGER PRIMARY KEY, params TEXT NOT NULL, attrs TEXT NOT NULL, crc32 INTEGER NOT NULL
);
CREATE TABLE runs (
    trial INTEGER NOT NULL, seed INTEGER NOT NULL, steps INTEGER NOT NULL, purpose TEXT NOT NULL,
    version TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL, tries INTEGER NOT NULL,
    score REAL, reason TEXT NOT NULL, seconds REAL, curve TEXT NOT NULL, directory TEXT NOT NULL,
    crc32 INTEGER NOT NULL,
    PRIMARY KEY (trial, seed, steps, purpose)
);
CREATE TABLE owners (owner TEXT PRIMARY KEY, crc32 INTEGER NOT NULL);
"""
_SETTINGS = "settings"  # the row of `sweep` with the settings as JSON
_STATES = ("running", "done", "pruned", "failed")
# Number of attempts at a run whose process dies, since something else may have killed it.
MAX_TRIES = 2
_Decoded = TypeVar("_Decoded")


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """The options of the last command, which `hotloop sweep resume` repeats or changes."""

    trials: int | None
    seeds: str
    hours: float | None
    jobs: str | None
    lanes: str
    pruner: str
    backend: str
    ray_address: str | None
    ray_runtime_env: str | None
    trial_resources: str | None


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """The settings of a sweep, which its file stores.

    Attributes:
        key: a text that is equal for sweeps that may share a file.
        algorithm: name of the algorithm on the command line.
        args: fixed options of the trainings, as on the command line.
        space: option → its space, as text or a list of values.
        sampler, sampler_seed: name and seed of the sampler.
        metric: a key of `worker.METRICS`.
        generations: number of generations of a population, None for other samplers.
        steps: number of steps of the last command's runs.
        runs_per_update: number of runs that share a compiled update.
        options: options of the last command.
        signature: the user's signature of all these, see `hotloop.runs.trust`.
    """

    key: str
    algorithm: str
    args: list[str]
    space: dict[str, Any]
    sampler: str
    sampler_seed: int
    metric: str
    generations: int | None
    steps: int
    runs_per_update: int
    options: ResumeOptions
    signature: str = field(default="", compare=False)

    @property
    def config(self) -> dict[str, Any]:
        """Fixed options of all trials as JSON values, without seed, steps and directories."""
        try:
            return documents.parse(self.key)["config"]
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                "the file of the sweep is damaged: its key has no configuration; restore the file, "
                "or start another sweep"
            ) from error


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


class Results(ResultsFile):
    """The file with the trials and runs of a sweep.

    Attributes:
        directory: parent directory of the run directories, which no other file shares.
        report_directory: default directory of the report.
    """

    kind, error, made_by = "sweep", ConfigError, __version__
    info_table, marks, tables = "sweep", {"format": "2"}, _TABLES

    def __init__(self, path: Path) -> None:
        # Files that differ only in their suffix get different directories.
        name = path.stem if path.suffix == ".sqlite" else f"{path.name}_sweep"
        self.directory = path.with_name(name)
        self.report_directory = path.with_name(f"{name}_report")
        self.owner = f"{boot_id()}:{os.getpid()}:{process_start(os.getpid())}"
        self._has_entered = False
        super().__init__(path)

    def close(self) -> None:
        """Unregister this process, and close the file."""
        if self._has_entered:  # otherwise there is nothing to write, nor a writer to wait for
            with contextlib.suppress(HotloopError), self._transaction():
                self._sqlite.execute("DELETE FROM owners WHERE owner = ?", (self.owner,))
        self._sqlite.close()

    # --- rows with checksums ----------------------------------------------------------------------

    def _store(self, table: str, *row: Any) -> None:
        """Insert or replace a row, within a transaction."""
        marks = ", ".join("?" * (len(row) + 1))
        values = (*row, checksum(*row))
        self._sqlite.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)

    def _stored(
        self,
        table: str,
        decode: Callable[..., _Decoded],
        condition: str = "1",
        values: Sequence[Any] = (),
    ) -> list[_Decoded]:
        """Return decoded rows in the order of their keys, after a check of their checksums."""
        decoded: list[_Decoded] = []
        order = {"trials": "number", "runs": "trial, seed, steps, purpose"}.get(table, "1")
        query = f"SELECT * FROM {table} WHERE {condition} ORDER BY {order}"
        for *row, stored_checksum in self._rows(query, values):
            if checksum(*row) != stored_checksum:
                raise self._damaged(f"the checksum of a row in the table {table} is wrong")
            try:
                decoded.append(decode(*row))
            except (ValueError, TypeError) as error:  # a file that was made to look intact
                raise self._damaged(f"a row in the table {table}: {error}") from error
        return decoded

    # --- the sweep --------------------------------------------------------------------------------

    @property
    def settings(self) -> SweepSettings | None:
        """The settings of the sweep, None if the file has no sweep yet."""

        def decode(_: str, value: str) -> SweepSettings:
            return documents.record(SweepSettings, documents.parse(value))

        rows = self._stored("sweep", decode, "crc32 IS NOT NULL")
        if not rows and self.trials():
            raise self._damaged("it has trials, but no settings")
        return rows[0] if rows else None

    @settings.setter
    def settings(self, settings: SweepSettings) -> None:
        content = asdict(settings)
        content["signature"] = trust.signature(content)
        with self._transaction():
            self._store("sweep", _SETTINGS, json.dumps(content))

    def enter(self, *, may_join: bool) -> None:
        """Register this process as an owner of the sweep.

        Args:
            may_join: whether other processes may run the sweep at the same time.

        Raises:
            ConfigError: another process runs the sweep.
        """
        with self._transaction():
            for owner in self._stored("owners", str):
                if owner == self.owner:
                    continue
                if not is_alive(owner):
                    self._sqlite.execute("DELETE FROM owners WHERE owner = ?", (owner,))
                elif not may_join:
                    raise ConfigError(
                        f"process {owner.split(':')[1]} is running the sweep of {self.path}: "
                        "wait for it, or pass `--join` to share its trials"
                    )
            self._store("owners", self.owner)
        self._has_entered = True

    def make_directory(self) -> None:
        """Create the directory of the runs.

        Raises:
            ConfigError: it has the runs of another file, which new ones would replace.
            OutputError: it can't be created.
        """
        description = f"the directory {self.directory} for the runs of {self.path}"
        make_directory(self.directory, description, "pass another `--file`")
        # Another process would store a trial before its run.
        if any(self.directory.glob("trial_*")) and not self.trials():
            raise ConfigError(
                f"{self.directory} has the runs of another sweep, whose file was moved or deleted: "
                "move this directory too, or pass another `--file`"
            )

    # --- trials -----------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return all trials, sorted by number."""
        return self._stored("trials", _trial)

    def add_trial(self, number: int, params: Mapping[str, Any], attrs: Mapping[str, Any]) -> bool:
        """Store a trial. Return False if another process has already stored this number."""
        with self._transaction():
            if self._stored("trials", _trial, "number = ?", (number,)):
                return False
            self._store("trials", number, json.dumps(params), json.dumps(attrs))
        return True

    def update_attrs(self, number: int, attrs: Mapping[str, Any]) -> None:
        """Add attributes to a trial."""
        with self._transaction():
            (trial,) = self._stored("trials", _trial, "number = ?", (number,))
            all_attrs = json.dumps({**trial.attrs, **attrs})
            self._store("trials", number, json.dumps(trial.params), all_attrs)

    # --- runs -------------------------------------------------------------------------------------

    def runs(self, purpose: str | None = None) -> list[Run]:
        """Return all runs, or those of a purpose, sorted by trial and seed."""
        runs = [claim.run for claim in self._stored("runs", _claim)]
        return [run for run in runs if purpose in (None, run.purpose)]

    def claim(
        self, trial: int, seed: int, steps: int, purpose: str, version: str, directory: str
    ) -> bool:
        """Claim a run. Return False if it is finished, or claimed by another running process."""
        with self._transaction():
            old, tries = self._find_claim(trial, seed, steps, purpose), 0
            if old is not None:
                is_owned = old.owner == self.owner
                if old.run.state != "running" or (not is_owned and is_alive(old.owner)):
                    return False
                tries = old.tries if is_owned else 0  # a killed sweep is not the run's failure
            run = Run(trial, seed, steps, purpose, "running", None, "", None, [], directory)
            self._store_claim(_Claim(run, version, self.owner, tries + 1))
        return True

    def tries(self, trial: int, seed: int, steps: int, purpose: str) -> int:
        """Return how often this process has started a run."""
        claim = self._find_claim(trial, seed, steps, purpose)
        return claim.tries if claim else 0

    def finish(self, run: Run) -> None:
        """Store the outcome of a claimed run."""
        with self._transaction():
            claim = self._find_claim(run.trial, run.seed, run.steps, run.purpose)
            if claim is not None:
                self._store_claim(claim._replace(run=run._replace(directory=claim.run.directory)))

    def _find_claim(self, *key: Any) -> _Claim | None:
        condition = "trial = ? AND seed = ? AND steps = ? AND purpose = ?"
        return next(iter(self._stored("runs", _claim, condition, key)), None)

    def _store_claim(self, claim: _Claim) -> None:
        run = claim.run
        score, seconds = (
            None if x is None or math.isnan(x) else float(x) for x in (run.score, run.seconds)
        )
        # Bytes of paths that are no UTF-8 can't be stored.
        directory, reason = printable(run.directory), printable(run.reason)
        self._store(
            "runs",
            *(run.trial, run.seed, run.steps, run.purpose, claim.version, run.state, claim.owner),
            *(claim.tries, score, reason, seconds, json.dumps(run.curve), directory),
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


class _Claim(NamedTuple):
    """A run, and the process that started it."""

    run: Run
    version: str
    owner: str
    tries: int


def _claim(*values: Any) -> _Claim:
    """Return a run from its row."""
    *key, version, state, owner, tries, score, reason, seconds, curve, directory = values
    if state not in _STATES:
        raise ValueError(f"expected the state {', '.join(_STATES)}, got '{state}'")
    points = [(int(steps), float(x)) for steps, x in documents.parse(curve)]
    run = Run._make((*key, state, score, reason, seconds, points, directory))
    return _Claim(run, version, owner, tries)


def _trial(number: int, params: str, attrs: str) -> Trial:
    """Return a trial from its row."""
    values = documents.parse(params), documents.parse(attrs)
    if not all(isinstance(x, dict) for x in values):
        raise ValueError("expected options by name")
    return Trial(number, *values)


def is_alive(owner: str) -> bool:
    """Return whether an owner, as stored in the file, is a running process on this machine."""
    boot, *numbers = owner.split(":")
    try:
        pid, start = map(int, numbers)
    except ValueError:  # the file was damaged, or made by someone else
        return False
    return boot == boot_id() and start != 0 and is_running(pid, start)
