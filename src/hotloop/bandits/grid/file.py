"""The results of a grid in one SQLite file: killed at any moment, it stays whole.

meta     the format of the file, and the hotloop that made it
points   what was asked: agent, environment, steps, … as canonical JSON
sums     what came out: a row for each point, seed, range of runs and version of the kernels
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hotloop import __version__
from hotloop.bandits.results import Sums
from hotloop.errors import BanditError, OutputError

FORMAT, VERSION = "hotloop grid", "1"
_WAIT_S = 60.0  # for another process's transaction, which takes milliseconds

# `seed` is text: seeds go up to 2⁶⁴ − 1, SQLite's integers to 2⁶³ − 1.
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS points (id INTEGER PRIMARY KEY, config TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS sums (
    point INTEGER NOT NULL REFERENCES points (id),
    seed TEXT NOT NULL,
    first_run INTEGER NOT NULL,
    num_runs INTEGER NOT NULL,
    kernel_version INTEGER NOT NULL,
    crc32 INTEGER NOT NULL,
    blob BLOB NOT NULL,
    PRIMARY KEY (point, seed, kernel_version, first_run, num_runs)
);
"""


class Piece(NamedTuple):
    """Runs `first_run` … `first_run + num_runs − 1` of one point: what a row of sums is of."""

    point: int
    first_run: int
    num_runs: int


class GridFile:
    """One file, open; of use to one thread, the one that made it.

    Several processes may have the file open: each of them writes whole transactions, and pieces
    that two of them computed are the same bytes.

    Args:
        path: of the file; made, with its directories, where there is none.
        seed: rows of other seeds are not looked at.
        kernel_version: rows of other versions are not looked at.

    Raises:
        BanditError: there is a file that is no grid, is damaged, or has another format; it is left
            as it is.
        OutputError: it can't be made or written.
    """

    def __init__(self, path: Path, *, seed: int, kernel_version: int) -> None:
        self.path = path
        self._key = (str(seed), kernel_version)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(str(error.strerror)) from error
        with self._told():
            # Transactions begin where they are written here, not where Python thinks best.
            self._sqlite = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
        try:
            with self._told():
                self._open()
        except BaseException:
            self._sqlite.close()
            raise

    def _open(self) -> None:
        tables = {name for (name,) in self._sqlite.execute("SELECT name FROM sqlite_master")}
        if tables:  # else it is new, or its maker was killed before its first transaction
            self._check(tables)
        # In WAL mode a transaction is there as soon as its last page is in the log. A process that
        # is killed, even by SIGKILL, takes nothing with it that it has written: the pages are the
        # system's. So no transaction waits for the disk. NORMAL, and not OFF, is for a power
        # failure: it may cost the last transactions, never the file.
        self._set_wal()
        self._sqlite.execute("PRAGMA synchronous = NORMAL")
        if not tables:
            with self._transaction():
                for statement in _TABLES.split(";"):
                    self._sqlite.execute(statement)
                made_by = (("format", FORMAT), ("version", VERSION), ("hotloop", __version__))
                self._sqlite.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", made_by)

    def _check(self, tables: set[str]) -> None:
        """Whether the file is ours; before anything in it is changed."""
        meta: dict[str, str] = {}
        if "meta" in tables:
            with contextlib.suppress(sqlite3.OperationalError):  # a table of another shape
                meta = dict(self._sqlite.execute("SELECT name, value FROM meta"))
        if meta.get("format") != FORMAT:
            raise BanditError(
                f"{self.path} is an SQLite file, but no grid of hotloop's: it has the tables "
                f"{', '.join(sorted(tables)[:5])}; name another file"
            )
        if meta.get("version") != VERSION:
            raise BanditError(
                f"{self.path} is a grid of format {meta.get('version')}, made by hotloop "
                f"{meta.get('hotloop')}, and hotloop {__version__} reads format {VERSION}: name "
                "another file, or use that version of hotloop"
            )

    def _set_wal(self) -> None:
        """Switch to WAL mode; SQLite does not wait by itself where another process is at it."""
        give_up_at = time.monotonic() + _WAIT_S
        while True:
            try:
                self._sqlite.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > give_up_at:
                    raise
                time.sleep(0.01)
            else:
                return

    def __enter__(self) -> GridFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the last one who does copies the log into it."""
        with self._told():
            self._sqlite.close()

    def ids(self, configs: Sequence[str]) -> list[int]:
        """The points' numbers in this file; points that it does not know are added."""
        query = "SELECT id FROM points WHERE config = ?"
        with self._told():
            found = [self._sqlite.execute(query, (config,)).fetchone() for config in configs]
            if None in found:
                with self._transaction():
                    self._sqlite.executemany(
                        "INSERT OR IGNORE INTO points (config) VALUES (?)",
                        ((config,) for config in configs),
                    )
                found = [self._sqlite.execute(query, (config,)).fetchone() for config in configs]
        return [row[0] for row in found]

    def pieces(self, points: Iterable[int]) -> set[Piece]:
        """What is there of these points; answered from the index, so no sums are read."""
        query = (
            "SELECT point, first_run, num_runs FROM sums "
            "WHERE point = ? AND seed = ? AND kernel_version = ?"
        )
        with self._told():
            return {
                Piece(*row)
                for point in points
                for row in self._sqlite.execute(query, (point, *self._key))
            }

    def num_of_other_kernels(self, points: Iterable[int]) -> int:
        """How many rows of these points and this seed another version of the kernels has made."""
        query = "SELECT count(*) FROM sums WHERE point = ? AND seed = ? AND kernel_version != ?"
        with self._told():
            counts = (self._sqlite.execute(query, (one, *self._key)).fetchone() for one in points)
            return sum(count for (count,) in counts)

    def add(self, rows: Sequence[tuple[Piece, bytes]]) -> None:
        """Store sums, all or none; a piece replaces what has fewer of the same runs.

        What is there already stays: it is the same bytes.
        """
        insert = "INSERT OR IGNORE INTO sums VALUES (?, ?, ?, ?, ?, ?, ?)"
        replace = (
            "DELETE FROM sums WHERE point = ? AND seed = ? AND kernel_version = ? "
            "AND first_run = ? AND num_runs < ?"
        )
        seed, kernel = self._key
        with self._told(), self._transaction():
            for (point, first_run, num_runs), blob in rows:
                row = (point, seed, first_run, num_runs, kernel, zlib.crc32(blob), blob)
                self._sqlite.execute(insert, row)
                self._sqlite.execute(replace, (point, seed, kernel, first_run, num_runs))

    def sums(self, piece: Piece) -> Sums | None:
        """What was stored for a piece; None if there is nothing, or no longer.

        Raises:
            BanditError: it is damaged.
        """
        query = (
            "SELECT crc32, blob FROM sums WHERE point = ? AND seed = ? AND kernel_version = ? "
            "AND first_run = ? AND num_runs = ?"
        )
        with self._told():
            row = self._sqlite.execute(query, (piece.point, *self._key, *piece[1:])).fetchone()
        if row is None:
            return None
        crc32, blob = row
        try:
            sums = Sums.from_bytes(blob)
        except BanditError as error:
            raise self._damaged(f"point {piece.point}: {error}") from None
        if zlib.crc32(blob) != crc32 or sums.num_runs != piece.num_runs:
            raise self._damaged(f"the checksum of point {piece.point}, run {piece.first_run}")
        return sums

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._sqlite.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sqlite.execute("COMMIT")
        finally:
            if self._sqlite.in_transaction:
                self._sqlite.execute("ROLLBACK")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors as ours, with what to do."""
        try:
            yield
        except sqlite3.Error as error:
            why = str(error)
            if "locked" in why:
                raise BanditError(
                    f"another process has held {self.path} for more than {_WAIT_S:.0f} s: wait for "
                    "it to end, or name another file"
                ) from error
            if isinstance(error, sqlite3.OperationalError) and "no such" not in why:
                raise self._unwritable(why) from error
            raise self._damaged(why) from error

    def _unwritable(self, why: str) -> OutputError:
        return OutputError(
            f"{self.path} can't be written ({why}): what it holds is kept; free some space, or "
            "name another place"
        )

    def _damaged(self, why: str) -> BanditError:
        return BanditError(
            f"{self.path} is no grid of hotloop's, or it is damaged ({why}): it is left as it is; "
            "name another file, or restore this one"
        )
