"""Output of tables as Parquet files."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base.files import atomic_write
from hotloop.errors import requires_extra


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, with nulls for columns that a row lacks.

    Raises:
        MissingExtraError: pyarrow is not installed.
        OutputError: the file can't be written.
    """
    with requires_extra("Parquet needs pyarrow", "parquet"):
        arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: arrow.array(_uniform([row.get(name) for row in rows])) for name in names}
    with atomic_write(path) as temporary_path:
        parquet.write_table(arrow.table(columns), temporary_path)


def _uniform(values: list[Any]) -> list[Any]:
    """Convert the values of a column to one type, objects to JSON text."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, dict) for value in known):
        return [value if value is None else json.dumps(value) for value in values]
    if any(isinstance(value, str) for value in known):
        # Names of files may contain characters that can't be encoded.
        texts = (str(value).encode("utf-8", "replace").decode() for value in values)
        return [None if value is None else x for value, x in zip(values, texts, strict=True)]
    if any(isinstance(value, list) for value in known):
        return [value if value is None else [float(item) for item in value] for value in values]
    if any(isinstance(value, int) and value >= 1 << 63 for value in known):
        return [value if value is None else np.uint64(value) for value in values]
    return values
