"""Tables of random numbers, in which a row depends only on the seed and the batch number."""

import pytest
import torch

from hotloop.ops.tensor_draws import DrawTable

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("size", [3, 40_000, 2_000_000])
def test_rows_do_not_depend_on_the_number_used_at_once(kind, size):
    counts = (1, 7, 90) if size < 1000 else (1, 3)
    last = 300 if size < 1000 else 4
    rows = []
    for count in counts:
        table, table_rows = DrawTable((4, 2), size, kind, CPU, count), []
        for first in range(0, last, count):
            indices = table.rows_of(first, min(count, last - first))
            table_rows += [row[:50].clone() for row in table.tensor[indices]]
        rows.append(torch.stack(table_rows))
    for other in rows[1:]:
        assert torch.equal(rows[0], other)
    assert len(rows[0].unique(dim=0)) == last


def test_earlier_rows_can_be_drawn_again():
    table = DrawTable((1,), 5, "uniform", CPU)
    first = table.tensor[table.row_of(2)].clone()
    table.row_of(10_000)
    assert torch.equal(table.tensor[table.row_of(2)], first)
    assert not torch.equal(DrawTable((2,), 5, "uniform", CPU).tensor[2], first)


def test_uniform_numbers_are_below_1_and_evenly_spread():
    table = DrawTable((1,), 100_000, "uniform", CPU)
    row = table.tensor[table.row_of(0)]
    assert row.dtype == torch.float64
    assert 0 <= row.min() < 1e-3
    assert 0.999 < row.max() < 1
    counts = torch.histc(row, 20, 0, 1)
    assert (abs(counts - 5000) < 5 * 70).all()
