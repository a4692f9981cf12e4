"""Results of a sweep in one SQLite file that many processes can write, and that survives kills.

A trial is a point of the search space. A run is one training of it, with a seed and a number of
steps. Trial 0 is the base configuration. Each method that writes returns after its transaction.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar

from hotloop.base import documents
from hotloop.base.files import make_directory
from hotloop.base.processes import boot_id, is_running, process_start
from hotloop.base.redaction import without_secrets
from hotloop.base.results_file import ResultsFile, checksum
from hotloop.base.streams import printable
from hotloop.base.version import __version__
from hotloop.errors import ConfigError, HotloopError
from hotloop.experiments.plan import Plan
from hotloop.runs import trust
from hotloop.runs.file_schemas import check_secrets

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
_NUMBER = (float, NoneType)
_RUN_TYPES = (int, int, int, *(str,) * 4, int, _NUMBER, str, _NUMBER, str, str)  # of the columns
_PLAN = "plan"  # the row of `sweep` with the plan as JSON
_STATES = ("running", "done", "pruned", "failed")
# Number of attempts at a run whose process dies, since the run may not be the cause.
MAX_TRIES = 2
# The file of a group of trainings, whose directory has the runs.
GROUP_FILE = "trainings.sqlite"
_Decoded = TypeVar("_Decoded")


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
        purpose: `tune`, or `test` for fresh seeds that did not influence the choice of options.
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
        is_group: whether these are the trainings of `hotloop train --seeds`, whose runs are named
            by their options.
        max_tries: number of attempts at a run whose process dies.
    """

    kind, error, made_by = "sweep", ConfigError, __version__
    info_table, marks, tables = "sweep", {"format": "3"}, _TABLES

    def __init__(self, path: Path) -> None:
        # Files that differ only in their suffix get different directories.
        name = path.stem if path.suffix == ".sqlite" else f"{path.name}_sweep"
        self.is_group = path.name == GROUP_FILE
        self.directory = path.parent if self.is_group else path.with_name(name)
        self.report_directory = path.with_name(f"{name}_report")
        # The runs of a group can be resumed, which a second try would prevent.
        self.max_tries = 1 if self.is_group else MAX_TRIES
        self.owner = f"{boot_id()}:{os.getpid()}:{process_start(os.getpid())}"
        self._has_entered = False
        super().__init__(path)

    def close(self) -> None:
        """Unregister this process, and close the file."""
        if self._has_entered:  # otherwise there is nothing to write
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
            # A forged file may have valid checksums.
            except (ValueError, TypeError, ArithmeticError) as error:
                raise self._damaged(f"a row in the table {table}: {error}") from error
        return decoded

    # --- the sweep --------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The plan of the last command, None if the file has none yet."""
        content = self._plan_content()
        return _decode_plan(content) if content else None

    @plan.setter
    def plan(self, plan: Plan) -> None:
        check_secrets(plan.config | {"ray_runtime_env": plan.ray_runtime_env})
        content = asdict(plan)
        content["signature"] = trust.signature(content)
        with self._transaction():
            self._store("sweep", _PLAN, json.dumps(content))

    @property
    def is_signed(self) -> bool:
        """Whether this user has written the plan on this machine."""
        return trust.is_signed(self._plan_content())

    def _plan_content(self) -> dict[str, Any]:
        """Return the stored plan and its signature, after a check, or {} if there is no plan."""

        def decode(_: str, value: str) -> dict[str, Any]:
            content = documents.parse(value)
            if not isinstance(content, dict):
                raise ValueError("expected a plan")
            _decode_plan(content)
            return content

        rows = self._stored("sweep", decode, "crc32 IS NOT NULL")
        if not rows and self.trials():
            raise self._damaged("it has trials, but no plan")
        return rows[0] if rows else {}

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
            ConfigError: it has the runs of another file, which new runs would replace.
            OutputError: it can't be created.
        """
        description = f"the directory {self.directory} for the runs of {self.path}"
        make_directory(self.directory, description, "pass another `--file`")
        if self.is_group:  # a group may grow by other seeds
            return
        # A running sweep would have stored a trial before the directory of its run.
        if any(self.directory.glob("trial_*")) and not self.trials():
            raise ConfigError(
                f"{self.directory} has the runs of another sweep, whose file was moved or deleted: "
                "move this directory too, or pass another `--file`"
            )

    def run_directory(self, trial: Trial, seed: int, steps: int, purpose: str) -> Path:
        """Return the directory of a run."""
        if self.is_group and purpose == "tune":
            return self.directory / group_run_name(trial.attrs.get("texts", {}), seed)
        name = f"trial_{trial.number:04}__seed_{seed}__{steps}"
        return self.directory / (name if purpose == "tune" else f"{name}__test")

    # --- trials -----------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return all trials, sorted by number."""
        return self._stored("trials", _decode_trial)

    def add_trial(self, number: int, params: Mapping[str, Any], attrs: Mapping[str, Any]) -> bool:
        """Store a trial. Return False if another process has already stored this number."""
        with self._transaction():
            if self._stored("trials", _decode_trial, "number = ?", (number,)):
                return False
            self._store("trials", number, json.dumps(params), json.dumps(attrs))
        return True

    def update_attrs(self, number: int, attrs: Mapping[str, Any]) -> None:
        """Add attributes to a trial."""
        with self._transaction():
            (trial,) = self._stored("trials", _decode_trial, "number = ?", (number,))
            all_attrs = json.dumps({**trial.attrs, **attrs})
            self._store("trials", number, json.dumps(trial.params), all_attrs)

    # --- runs -------------------------------------------------------------------------------------

    def runs(self, purpose: str | None = None) -> list[Run]:
        """Return all runs, or those of a purpose, sorted by trial and seed."""
        runs = [claim.run for claim in self._stored("runs", _decode_claim)]
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
                tries = old.tries if is_owned else 0  # the kill of a sweep is not the run's failure
            run = Run(trial, seed, steps, purpose, "running", None, "", None, [], directory)
            self._store_claim(_Claim(run, version, self.owner, tries + 1))
        return True

    def tries(self, trial: int, seed: int, steps: int, purpose: str) -> int:
        """Return how often this process has started a run."""
        claim = self._find_claim(trial, seed, steps, purpose)
        return claim.tries if claim else 0

    def finish(self, *runs: Run) -> None:
        """Store the outcomes of claimed runs, all or none."""
        with self._transaction():
            for run in runs:
                claim = self._find_claim(run.trial, run.seed, run.steps, run.purpose)
                if claim is not None:
                    run = run._replace(directory=claim.run.directory)
                    self._store_claim(claim._replace(run=run))

    def _find_claim(self, *key: Any) -> _Claim | None:
        condition = "trial = ? AND seed = ? AND steps = ? AND purpose = ?"
        return next(iter(self._stored("runs", _decode_claim, condition, key)), None)

    def _store_claim(self, claim: _Claim) -> None:
        run = claim.run
        score, seconds = (
            None if x is None or math.isnan(x) else float(x) for x in (run.score, run.seconds)
        )
        # Bytes of paths that are no UTF-8 can't be stored.
        directory, reason = printable(run.directory), without_secrets(printable(run.reason))
        self._store(
            "runs",
            *(run.trial, run.seed, run.steps, run.purpose, claim.version, run.state, claim.owner),
            *(claim.tries, score, reason, seconds, json.dumps(run.curve), directory),
        )

    def delete_runs(self, steps: int) -> None:
        """Delete all runs with this number of steps."""
        with self._transaction():
            self._sqlite.execute("DELETE FROM runs WHERE steps = ?", (steps,))


def results_path(path: Path) -> Path:
    """Return the file of results at a path, or in a directory of runs.

    Raises:
        ConfigError: there is no such file.
    """
    if path.is_dir():
        for file in (path / GROUP_FILE, path.with_name(f"{path.name}.sqlite")):
            if file.is_file():
                return file
        raise ConfigError(
            f"{path} is a directory without results of a sweep: pass the file that `hotloop sweep` "
            "has printed, such as sweeps/CartPole-v1__ppo.sqlite"
        )
    if not path.exists():
        raise ConfigError(f"{path} does not exist: `hotloop sweep ALGORITHM …` creates it")
    return path


def _decode_plan(content: Mapping[str, Any]) -> Plan:
    """Return the plan from its JSON object, which also has a signature."""
    return documents.record(Plan, {k: v for k, v in content.items() if k != "signature"})


def group_run_name(texts: Mapping[str, str], seed: int) -> str:
    """Return the name of a run in a group, from its varied options and its seed."""
    stem = "".join(f"{name}={text}__" for name, text in texts.items())
    return re.sub(r"[^\w.+=-]+", "-", f"{stem}seed_{seed}")


class _Claim(NamedTuple):
    """A run, and the process that started it."""

    run: Run
    version: str
    owner: str
    tries: int


def _decode_claim(*values: Any) -> _Claim:
    """Return a run from its row."""
    *key, version, state, owner, tries, score, reason, seconds, curve, directory = values
    if not all(map(isinstance, values, _RUN_TYPES)):
        raise ValueError("a value has another type")
    if not all(x is None or math.isfinite(x) for x in (score, seconds)):
        raise ValueError(f"expected a finite score and time, got {score} and {seconds}")
    if state not in _STATES:
        raise ValueError(f"expected the state {', '.join(_STATES)}, got '{state}'")
    points = [(int(steps), float(x)) for steps, x in documents.parse(curve)]
    run = Run._make((*key, state, score, reason, seconds, points, directory))
    return _Claim(run, version, owner, tries)


def _decode_trial(number: int, params: str, attrs: str) -> Trial:
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
    except ValueError:  # the file is damaged, or from another program
        return False
    return boot == boot_id() and start != 0 and is_running(pid, start)
