"""Parquet files: columns with missing values, large integers and texts that can't be encoded."""

import numpy as np
import pytest
from pyarrow import parquet

from hotloop.base.parquet import write


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["runs/\udcff", None], ["runs/?", None]),
        ([2**64 - 1, None], [2**64 - 1, None]),
        ([1, 2.5, None], [1.0, 2.5, None]),
        ([{"a": "\udcff"}, None], ['{"a": "\\udcff"}', None]),
        ([[1, 2], None], [[1.0, 2.0], None]),
    ],
)
def test_columns_are_read_back(tmp_path, values, expected):
    path = tmp_path / "a.parquet"
    write(path, [{"x": value} for value in values] + [{"y": np.float64(1)}])
    table = parquet.read_table(path).to_pydict()
    assert table == {"x": [*expected, None], "y": [None] * len(values) + [1.0]}
