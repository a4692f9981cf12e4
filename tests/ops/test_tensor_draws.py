"""Tables of random numbers: a row is a function of the seed and of the batch's number."""

import pytest
import torch

from hotloop.ops.tensor_draws import DrawTable

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("size", [3, 40_000, 2_000_000])
def test_rows_do_not_depend_on_how_many_are_used_at_once(kind, size):
    counts = (1, 7, 90) if size < 1000 else (1, 3)
    last = 300 if size < 1000 else 4
    rows = []
    for count in counts:
        table, found = DrawTable((4, 2), size, kind, CPU, count), []
        for first in range(0, last, count):
            places = table.places(first, min(count, last - first))
            found += [row[:50].clone() for row in table.tensor[places]]
        rows.append(torch.stack(found))
    for other in rows[1:]:
        assert torch.equal(rows[0], other)
    assert len(rows[0].unique(dim=0)) == last


def test_rows_that_were_passed_may_be_drawn_again():
    table = DrawTable((1,), 5, "uniform", CPU)
    first = table.tensor[table.place(2)].clone()
    table.place(10_000)
    assert torch.equal(table.tensor[table.place(2)], first)
    assert not torch.equal(DrawTable((2,), 5, "uniform", CPU).tensor[2], first)


def test_uniform_numbers_are_below_1_and_even():
    table = DrawTable((1,), 100_000, "uniform", CPU)
    row = table.tensor[table.place(0)]
    assert row.dtype == torch.float64
    assert 0 <= row.min() < 1e-3
    assert 0.999 < row.max() < 1
    counts = torch.histc(row, 20, 0, 1)
    assert (abs(counts - 5000) < 5 * 70).all()
