"""Sequences are of one environment and one episode, and as likely as each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from hotloop.errors import ReplayError
from hotloop.replay import Batch, Sequences
from tests.reference import replay as reference
from tests.replay.test_model import LAYOUTS, Model, Setup, flat, setups


def firsts_of(batch: Batch) -> list[int]:
    """The numbers that were drawn: of each sequence's first transition to learn from."""
    return batch.index[batch.mask.argmax(axis=0), np.arange(len(batch))].tolist()


def check(batch: Batch, twin: reference.Replay) -> None:
    """Every byte of every sequence is what the twin says, given which ones were drawn."""
    sampler: Any = twin.sampler
    shape = (sampler.burn_in + sampler.length, len(batch))
    assert (batch.index.dtype, batch.index.shape) == (np.int64, shape)
    assert (batch.mask.dtype, batch.mask.shape) == (np.bool_, shape)
    want = [twin.sequence(first) for first in firsts_of(batch)]
    np.testing.assert_array_equal(batch.index.T, [numbers for numbers, _ in want])
    np.testing.assert_array_equal(batch.mask.T, [mask for _, mask in want])
    found = flat({name: batch[name] for name in batch})
    names = twin.entries[twin.num_added - 1].fields.keys()
    assert found.keys() == {*names, "index", "mask"}
    for name in names:
        rows = batch.index[:1] if name == "memory" else batch.index
        column = np.stack([twin.entries[number].fields[name] for number in rows.flat])
        column = column.reshape(*rows.shape, *column.shape[1:])
        column = column[0] if name == "memory" else column
        assert (found[name].dtype, found[name].shape) == (column.dtype, column.shape), name
        assert found[name].tobytes() == column.tobytes(), name


# Against the twin.


class SequenceModel(Model):
    """As the model of all buffers, which adds, cuts, leaves out, saves and loads."""

    @rule(size=st.integers(1, 40), hold=st.booleans())
    def sample(self, size: int, hold: bool) -> None:
        if not self.twin.entries:
            with pytest.raises(ReplayError, match="empty"):
                self.buffer.sample(size)
            return
        batch = self.buffer.sample(size)
        check(batch, self.twin)
        self.num_samples += 1
        if hold:
            seen = {name: value.tobytes() for name, value in flat(vars(batch)).items()}
            self.held = [*self.held[-2:], (batch, seen)]


def with_room(setup: Setup) -> Setup:
    sampler: Any = setup.sampler
    return replace(setup, capacity=max(setup.capacity, sampler.steps))


SEQUENCES = st.builds(Sequences, length=st.integers(1, 7), burn_in=st.integers(0, 6))
OTHERS = tuple(name for name, (_, others, _) in LAYOUTS.items() if "mask" not in others)


@pytest.mark.parametrize("examples", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_sequences_are_those_of_the_twin(examples):
    SequenceModel.setups = setups(SEQUENCES, False, OTHERS).map(with_room)
    run_state_machine_as_test(
        SequenceModel,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
