"""Rows of metrics: sums over kinds of update, and the first that was not finite."""

import numpy as np
import pytest
import torch

from hotloop.learner import Metrics

CRITICS, POLICY = ("loss", "q_value"), ("entropy",)


def filled_metrics():
    metrics = Metrics()
    for update in range(1, 5):
        metrics.add("critics", CRITICS, torch.tensor([update, 10.0]), update)
        if update % 2 == 0:
            metrics.add("policy", POLICY, torch.tensor([0.5 * update]), update)
    return metrics


def test_means_are_over_the_updates_of_each_kind():
    metrics = filled_metrics()
    assert metrics.means() == {"loss": 2.5, "q_value": 10.0, "entropy": 1.5}
    metrics.add("critics", CRITICS, torch.tensor([7.5, 10.0]), 5)  # accumulated rows still count
    assert metrics.means() == {"loss": 3.5, "q_value": 10.0, "entropy": 1.5}
    metrics.clear()
    assert metrics.means() == {}


def test_sums_are_float64():
    metrics = Metrics()
    metrics.add("critics", ("loss",), torch.tensor([2.0**24]), 1)
    metrics.accumulate()
    for update in range(2, 4):
        metrics.add("critics", ("loss",), torch.tensor([1.0]), update)
        metrics.accumulate()
    assert metrics.means() == {"loss": (2**24 + 2) / 3}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_first_row_that_is_not_finite_is_named(value):
    metrics = filled_metrics()
    assert metrics.first_non_finite() is None
    metrics.add("critics", CRITICS, torch.tensor([value, value]), 6)
    metrics.add("policy", POLICY, torch.tensor([value]), 5)
    metrics.add("critics", CRITICS, torch.tensor([value, 1.0]), 7)
    assert metrics.first_non_finite() == (5, ["entropy"])
    metrics.accumulate()
    assert metrics.first_non_finite() is None  # already checked
    metrics.add("critics", CRITICS, torch.tensor([1.0, value]), 8)
    assert metrics.first_non_finite() == (8, ["q_value"])


def test_pop_returns_the_rows_of_a_single_kind():
    metrics = Metrics()
    for update in range(3):
        metrics.add("update", CRITICS, torch.tensor([update, 1.0]), update)
    names, rows = metrics.pop()
    assert names == CRITICS
    assert rows.tolist() == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    metrics.add("update", CRITICS, torch.tensor([9.0, 9.0]), 3)
    assert metrics.pop()[1].tolist() == [[9.0, 9.0]]
