"""An SQLite file of results that many processes can write, and that stays valid after a kill.

A file with other content, of another format, or a damaged one raises an error and is not changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hotloop.errors import HotloopError, OutputError, shortened

_WAIT_S = 60.0  # timeout for a transaction of another process, which takes milliseconds
# SQLite's messages about a file that can't be opened or written. Its others concern the content.
_UNWRITABLE = ("unable to open", "readonly", "full", "disk I/O", "permission")


class ResultsFile:
    """An open file of results, for use in the thread that opened it.

    Args:
        path: path of the file, which is created with its directories if it does not exist.

    Raises:
        HotloopError: the file is damaged or of another kind or format. The class is `error`.
        OutputError: the file can't be created or written.
    """

    kind: ClassVar[str]
    error: ClassVar[type[HotloopError]]
    info_table: ClassVar[str]  # the table that contains `marks`
    marks: ClassVar[dict[str, str]]  # rows that identify the format (first) and the kind
    tables: ClassVar[str]  # as SQL
    made_by: ClassVar[str]  # the version of hotloop that writes new files

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():  # a pipe could block, and a device never ends
            reason = "it is a directory" if path.is_dir() else "it is not a regular file"
            raise OutputError(f"{path} can't be written ({reason}): choose another path")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(str(error.strerror)) from error
        with self._convert_errors():
            # `isolation_level=None`: Python starts no implicit transactions.
            self._sqlite = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
        try:
            with self._convert_errors():
                self._open()
        except BaseException:
            self._sqlite.close()
            raise

    def _open(self) -> None:
        tables = {name for (name,) in self._sqlite.execute("SELECT name FROM sqlite_master")}
        if tables:  # otherwise it is new, or its creator was killed before the first transaction
            self._check(tables)
            ((verdict,),) = self._sqlite.execute("PRAGMA quick_check(1)")
            if verdict != "ok":
                raise self._damaged(verdict.splitlines()[-1])
        # In WAL mode a transaction is complete once its last page is in the log. Written pages
        # belong to the kernel and survive even SIGKILL, so no transaction waits for the disk.
        # With NORMAL instead of OFF, a power failure can lose the last transactions, but never
        # damages the file.
        self._set_wal()
        self._sqlite.execute("PRAGMA synchronous = NORMAL")
        if not tables:
            with self._transaction():
                if self._rows("SELECT name FROM sqlite_master"):
                    return  # another process has created the tables
                for statement in self.tables.split(";"):
                    self._sqlite.execute(statement)
                marks = (*self.marks.items(), ("hotloop", f'"{self.made_by}"'))
                insert = f"INSERT INTO {self.info_table} (name, value) VALUES (?, ?)"
                self._sqlite.executemany(insert, marks)

    def _check(self, tables: set[str]) -> None:
        """Raise an error if the file is of another kind or format, before it is changed."""
        values: dict[str, str] = {}
        # A file of another program may contain a view whose query never ends.
        kinds = {kind for (kind,) in self._sqlite.execute("SELECT type FROM sqlite_master")}
        if self.info_table in tables and kinds <= {"table", "index"}:
            with contextlib.suppress(sqlite3.OperationalError):  # another program's table
                values = dict(self._sqlite.execute(f"SELECT name, value FROM {self.info_table}"))
        (version, expected), *other_marks = self.marks.items()
        if version not in values or any(values.get(name) != value for name, value in other_marks):
            raise self.error(
                f"{self.path} is an SQLite file, but not a hotloop {self.kind}: it has the tables "
                f"{', '.join(sorted(tables)[:5])}; choose another file"
            )
        if values[version] != expected:
            stored, maker = (shortened(str(values.get(x))) for x in (version, "hotloop"))
            raise self.error(
                f"{self.path} is a {self.kind} of format {stored}, made by hotloop {maker}, and "
                f"hotloop {self.made_by} reads format {expected}: choose another file, or use that "
                "version of hotloop"
            )

    def _set_wal(self) -> None:
        """Switch to WAL mode. SQLite itself does not wait for another process that does this."""
        deadline_s = time.monotonic() + _WAIT_S
        while True:
            try:
                self._sqlite.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)
            else:
                return

    def close(self) -> None:
        """Close the file. The last process to close it copies the log into it."""
        with self._convert_errors():
            self._sqlite.close()

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._convert_errors():
            return self._sqlite.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write everything in the body or nothing, while no other process writes."""
        with self._convert_errors():
            self._sqlite.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._sqlite.execute("COMMIT")
            finally:
                if self._sqlite.in_transaction:
                    self._sqlite.execute("ROLLBACK")

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:  # in a stored text, or a name in SQLite's message
            raise self._damaged("a text is not UTF-8") from error
        except sqlite3.Error as error:
            reason = str(error)
            if "locked" in reason:
                raise self.error(
                    f"another process has locked {self.path} for more than {_WAIT_S:.0f} s: wait "
                    "for it to end, or choose another file"
                ) from error
            if any(text in reason for text in _UNWRITABLE):
                raise self._unwritable(reason) from error
            raise self._damaged(reason) from error

    def _unwritable(self, reason: str) -> OutputError:
        return OutputError(
            f"{self.path} can't be written ({reason}): stored results are kept; free some space, "
            "or choose another path"
        )

    def _damaged(self, reason: str) -> HotloopError:
        return self.error(
            f"{self.path} is not a hotloop {self.kind}, or it is damaged ({reason}): choose "
            "another file, or restore this one, which is unchanged"
        )


def checksum(*values: Any) -> int:
    """Return the CRC-32 of values as SQLite stores them, with their types."""
    return zlib.crc32(repr(values).encode())
