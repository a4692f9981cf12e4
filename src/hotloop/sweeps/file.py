"""One SQLite file of results: any number of processes write it, killed at any moment it is whole.

A file of something else, of another format, or a damaged one is refused, and left as it is.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hotloop import __version__
from hotloop.errors import HotloopError, OutputError

_WAIT_S = 60.0  # for another process's transaction, which takes milliseconds


class ResultsFile:
    """One file, open; of use to one thread, the one that made it.

    Args:
        path: of the file; made, with its directories, where there is none.

    Raises:
        HotloopError: the kind's own; there is a file that is refused.
        OutputError: it can't be made or written.
    """

    kind: ClassVar[str]
    error: ClassVar[type[HotloopError]]
    about: ClassVar[str]  # the table that has `marks`
    marks: ClassVar[dict[str, str]]  # what tells the kind and its format; first the latter
    tables: ClassVar[str]  # as SQL

    def __init__(self, path: Path) -> None:
        self.path = path
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
                if self._rows("SELECT name FROM sqlite_master"):
                    return  # another process was first
                for statement in self.tables.split(";"):
                    self._sqlite.execute(statement)
                marks = (*self.marks.items(), ("hotloop", f'"{__version__}"'))
                self._sqlite.executemany(f"INSERT INTO {self.about} VALUES (?, ?)", marks)

    def _check(self, tables: set[str]) -> None:
        """Whether the file is ours; before anything in it is changed."""
        found: dict[str, str] = {}
        if self.about in tables:
            with contextlib.suppress(sqlite3.OperationalError):  # a table of another shape
                found = dict(self._sqlite.execute(f"SELECT name, value FROM {self.about}"))
        (version, expected), *others = self.marks.items()
        if version not in found or any(found.get(name) != value for name, value in others):
            raise self.error(
                f"{self.path} is an SQLite file, but no {self.kind} of hotloop's: it has the "
                f"tables {', '.join(sorted(tables)[:5])}; name another file"
            )
        if found[version] != expected:
            raise self.error(
                f"{self.path} is a {self.kind} of format {found[version]}, made by hotloop "
                f"{found.get('hotloop')}, and hotloop {__version__} reads format {expected}: name "
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

    def close(self) -> None:
        """Close the file; the last one who does copies the log into it."""
        with self._told():
            self._sqlite.close()

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._told():
            return self._sqlite.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it is written, or nothing; nobody else writes meanwhile."""
        with self._told():
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
                raise self.error(
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

    def _damaged(self, why: str) -> HotloopError:
        return self.error(
            f"{self.path} is no {self.kind} of hotloop's, or it is damaged ({why}): it is left as "
            "it is; name another file, or restore this one"
        )
