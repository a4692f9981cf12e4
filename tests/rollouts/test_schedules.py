"""Decisions of schedules, for rows and versions written by hand."""

import pytest

from hotloop.rollouts import CollectionOptions
from hotloop.rollouts.schedules import Progress, row_limits, take_rows, too_old_rows


class Rows:
    """Versions of each worker's begun rows."""

    def __init__(self, versions):
        self.versions = versions

    def version(self, worker, row):
        return self.versions[worker][row]

    def oldest_version(self, worker, row):
        return min(self.versions[worker][row:], default=None)


def make_progress(schedule, finished, versions=None, *, version=0, next_rows=(0, 0), **options):
    options = CollectionOptions(num_steps=4, seed=0, schedule=schedule, **options)
    versions = versions or [[0] * count for count in finished]
    progress = Progress(options, Rows(versions), num_workers=len(versions), num_envs=1)
    progress.finished_rows, progress.next_rows = list(finished), list(next_rows)
    progress.version = version
    return progress


@pytest.mark.parametrize(
    ("finished", "next_rows", "expected"),
    [
        ((0, 0), (0, 0), 8),
        ((4, 1), (0, 0), 3),
        ((4, 4), (0, 0), [4, 4]),
        ((8, 8), (5, 6), [3, 2]),  # after a run with another schedule
    ],
)
def test_barrier_takes_fragments_that_end_at_multiples(finished, next_rows, expected):
    progress = make_progress("barrier", finished, next_rows=next_rows)
    assert take_rows(progress) == expected


@pytest.mark.parametrize(
    ("finished", "expected"), [((3, 1), 4), ((8, 0), 1), ((7, 1), [7, 1]), ((6, 5), [4, 4])]
)
def test_variable_takes_a_fixed_total_and_a_row_of_every_worker(finished, expected):
    assert take_rows(make_progress("variable", finished)) == expected


def test_limits_of_rows():
    rows = {"finished": (9, 9), "next_rows": (5, 8)}
    limits = {
        name: row_limits(make_progress(name, **rows)) for name in ("barrier", "variable", "async")
    }
    assert limits["barrier"] == ([8, 12], None)
    assert limits["variable"] == ([13, 16], 21)
    assert limits["async"] == ([13, 16], None)


@pytest.mark.parametrize(
    ("finished", "version", "expected"),
    [
        ((1, 1), 0, 1),
        ((3, 0), 0, [3, 0]),
        # Version 0 of worker 1's unfinished row is 2 versions old: one more would be too old.
        ((3, 0), 2, 1),
        ((3, 1), 2, [3, 1]),
    ],
)
def test_async_waits_for_unfinished_rows_that_would_become_too_old(finished, version, expected):
    versions = [[2, 2, 2, 2], [0, 2]]
    options = {"version": version, "min_transitions": 3, "max_policy_age": 2}
    assert take_rows(make_progress("async", finished, versions, **options)) == expected


@pytest.mark.parametrize(
    ("finished", "drops_too_old", "expected"),
    [
        ((4, 2), False, 2),  # worker 1 misses fewer rows
        ((8, 2), False, 1),  # its first fragment would become too old
        ((8, 2), True, [8, 0]),
        ((8, 4), False, [4, 4]),  # the oldest fragments first
    ],
)
def test_async_takes_whole_fragments(finished, drops_too_old, expected):
    versions = [[0] * 4 + [2] * 4, [1] * 4 + [2] * 2]
    options = {"version": 2, "max_policy_age": 1, "in_fragments": True}
    progress = make_progress("async", finished, versions, drops_too_old=drops_too_old, **options)
    assert take_rows(progress) == expected


def test_finished_rows_beyond_the_age_limit_are_counted():
    versions, options = [[0, 0, 1, 1, 3], [2, 2]], {"version": 4, "max_policy_age": 2}
    assert too_old_rows(make_progress("async", (5, 1), versions, **options)) == [4, 0]
    # Whole fragments only: the fifth row is not part of one.
    options["in_fragments"] = True
    assert too_old_rows(make_progress("async", (5, 1), versions, **options)) == [4, 0]
    assert too_old_rows(make_progress("async", (3, 1), versions, **options)) == [0, 0]
