"""A grid's table as Parquet: a row a point, with curves as lists."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.bandits.grid.notation import ENV
from hotloop.bandits.results import QUANTITIES
from hotloop.errors import MissingExtraError
from hotloop.system.files import written_whole

if TYPE_CHECKING:
    from hotloop.bandits.grid.table import GridRow, GridTable


def write_parquet(table: GridTable, path: Path) -> None:
    """See `GridTable.save_parquet`."""
    try:
        arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ImportError as error:
        raise MissingExtraError(
            "exporting a grid needs pyarrow: pip install 'hotloop[parquet]'"
        ) from error
    rows = [_flat(row) for row in table.rows]
    columns = {name: arrow.array(_alike([row[name] for row in rows])) for name in rows[0]}
    with written_whole(path) as aside:
        parquet.write_table(arrow.table(columns), aside)


def _flat(row: GridRow) -> dict[str, Any]:
    """A point in columns."""
    result = row.result
    columns = {"agent": row.agent.name}
    columns |= _typed(row.agent, row.config["agent"])
    columns["environment"] = row.environment.name
    inner = _typed(row.environment, row.config["environment"])
    columns |= {f"{ENV}{name}": value for name, value in inner.items()}
    for name in ("seed", "num_runs", "num_steps", "late_steps", "steps_per_point"):
        columns[name] = getattr(result, name)
    for quantity in QUANTITIES:
        columns[quantity], columns[f"{quantity}_se"] = result.estimate(quantity)
    for name in ("step", "reward", "optimal", "regret"):
        columns[name] = getattr(result, name)
        if name != "step":
            columns[f"{name}_se"] = getattr(result, f"{name}_se")
    return columns


def _typed(thing: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the types of their fields: a column is float64 though all in it are whole."""
    typed = {}
    for one in fields(thing):
        value = config[one.name]
        is_float = "float" in str(one.type) and isinstance(value, int)
        typed[one.name] = float(value) if is_float else value
    return typed


def _alike(values: list[Any]) -> list[Any]:
    """A column has one type; whatever else JSON can hold stands there as text."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, dict) for value in known):
        return [value if value is None else json.dumps(value) for value in values]
    if any(isinstance(value, list) for value in known):
        return [value if value is None else [float(one) for one in value] for value in values]
    if any(isinstance(value, int) and value >= 1 << 63 for value in known):
        return [np.uint64(value) for value in values]
    return values
