"""The results of a grid in one SQLite file, which stays intact if the process is killed.

meta     the file's format and the version of hotloop that created it
points   inputs: agent, environment, steps, … as canonical JSON
sums     results: a row for each point, seed, range of runs and version of the kernels, with a
         checksum of the results and of all that they depend on
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hotloop.bandits.results import RunSums
from hotloop.base.results_file import ResultsFile, checksum
from hotloop.base.version import __version__
from hotloop.errors import BanditError

# `seed` is text: seeds go up to 2⁶⁴ − 1, SQLite's integers to 2⁶³ − 1.
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE points (id INTEGER PRIMARY KEY, config TEXT NOT NULL UNIQUE);
CREATE TABLE sums (
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
    """The runs `first_run` … `first_run + num_runs − 1` of one point, stored in one row of sums."""

    point: int
    first_run: int
    num_runs: int


class GridFile(ResultsFile):
    """Sums of points for one seed and version of the kernels. It ignores other rows."""

    kind, error, made_by = "grid", BanditError, __version__
    info_table, marks, tables = "meta", {"version": "2", "format": "hotloop grid"}, _TABLES

    def __init__(self, path: Path, *, seed: int, kernel_version: int) -> None:
        self._key = (str(seed), kernel_version)
        self._configs: dict[int, str] = {}
        super().__init__(path)

    def __enter__(self) -> GridFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ids(self, configs: Sequence[str]) -> list[int]:
        """Return the points' ids in this file, after adding points that are not in it."""
        ids = dict(self._rows("SELECT config, id FROM points"))
        new = [(config,) for config in configs if config not in ids]
        if new:
            with self._transaction():
                self._sqlite.executemany("INSERT OR IGNORE INTO points (config) VALUES (?)", new)
            ids = dict(self._rows("SELECT config, id FROM points"))
        if not ids.keys() >= set(configs):
            raise self._damaged("an index does not match its table")
        self._configs |= {ids[config]: config for config in configs}
        return [ids[config] for config in configs]

    def pieces(self, points: Iterable[int]) -> set[Piece]:
        """Return the stored pieces of these points, from the index and without reading sums."""
        query = "SELECT point, first_run, num_runs FROM sums WHERE seed = ? AND kernel_version = ?"
        ids = set(points)
        return {Piece(*row) for row in self._rows(query, self._key) if row[0] in ids}

    def num_of_other_kernels(self, points: Iterable[int]) -> int:
        """Return the number of rows of these points and this seed from other kernel versions."""
        query = "SELECT point FROM sums WHERE seed = ? AND kernel_version != ?"
        ids = set(points)
        return sum(point in ids for (point,) in self._rows(query, self._key))

    def add(self, rows: Sequence[tuple[Piece, bytes]]) -> None:
        """Store sums in one transaction. A piece replaces one with fewer of the same runs.

        Pieces that are already in the file stay, because their bytes are equal.
        """
        insert = "INSERT OR IGNORE INTO sums VALUES (?, ?, ?, ?, ?, ?, ?)"
        replace = (
            "DELETE FROM sums WHERE point = ? AND seed = ? AND kernel_version = ? "
            "AND first_run = ? AND num_runs < ?"
        )
        seed, kernel = self._key
        with self._transaction():
            for piece, blob in rows:
                point, first_run, num_runs = piece
                row = (point, seed, first_run, num_runs, kernel, self._checksum(piece, blob), blob)
                self._sqlite.execute(insert, row)
                self._sqlite.execute(replace, (point, seed, kernel, first_run, num_runs))

    def sums(self, piece: Piece) -> RunSums | None:
        """Return the sums of a piece, or None if they are not or no longer in the file.

        Raises:
            BanditError: the row is damaged.
        """
        query = (
            "SELECT crc32, blob FROM sums WHERE point = ? AND seed = ? AND kernel_version = ? "
            "AND first_run = ? AND num_runs = ?"
        )
        rows = self._rows(query, (piece.point, *self._key, *piece[1:]))
        if not rows:
            return None
        ((crc32, blob),) = rows
        try:
            sums = RunSums.from_bytes(blob)
        except BanditError as error:
            raise self._damaged(f"point {piece.point}: {error}") from None
        if self._checksum(piece, blob) != crc32 or sums.num_runs != piece.num_runs:
            raise self._damaged(f"the checksum of point {piece.point}, run {piece.first_run}")
        return sums

    def _checksum(self, piece: Piece, blob: bytes) -> int:
        """Return the CRC-32 of sums and of all that they depend on."""
        return zlib.crc32(blob, checksum(self._configs[piece.point], *self._key, *piece[1:]))
