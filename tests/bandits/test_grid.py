import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hotloop.bandits import EpsilonGreedy, GaussianRewards, RandomWalk, run
from hotloop.bandits.grids import Grid, computation, jobs
from hotloop.bandits.grids import grid as grid_module
from hotloop.bandits.grids.grid_file import GridFile, Piece
from hotloop.bandits.grids.grid_table import plot_axes
from hotloop.bandits.grids.points import range_values
from hotloop.bandits.running import KERNEL_VERSION
from hotloop.errors import (
    BanditError,
    ConfigError,
    MissingExtraError,
    OutputError,
    UnknownNameError,
    install_command,
)
from tests.faults.damage import cut, flip, insert, zero


def make_grid(**changes):
    """Return a grid of 24 points in two environments."""
    settings = {
        "agent_fields": {"epsilon": "2**-7:2**-2:x2", "step_size": "none,0.1"},
        "environment_name": "random-walk",
        "environment_fields": {"walk": [0.01, 0.1]},
        "num_steps": 60,
    }
    return Grid("epsilon-greedy", **(settings | changes))


def read_sums(path):
    """Return all sums by their keys, without the ids of points in the file."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT config, seed, first_run, num_runs, kernel_version, blob "
            "FROM sums JOIN points ON points.id = point"
        ).fetchall()
    connection.close()
    sums = {row[:-1]: row[-1] for row in rows}
    assert len(sums) == len(rows)
    return sums


def content(table):
    return [(row.config, row.result.sums.to_bytes()) for row in table.rows]


# --- ranges


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.01,0.1", [0.01, 0.1]),
        ("none, 0.1,true", [None, 0.1, True]),
        ("2**-3:2**-1:x2", [0.125, 0.25, 0.5]),
        ("1/8:1/2:x2", [0.125, 0.25, 0.5]),
        ("0.1:0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),  # not 0.30000000000000004
        ("0:1:0.3", [0.0, 0.3, 0.6, 0.9]),
        ("0.5:0.1:-0.2", [0.5, 0.3, 0.1]),
        ("4:1:x0.5", [4.0, 2.0, 1.0]),
        ("2:10:4,20", [2, 6, 10, 20]),
        ("2:16:x2", [2, 4, 8, 16]),
        ("-1:-4:x2", [-1, -2, -4]),
        ("3:3:1", [3]),
        ("1e-999999999:1:0.5", [0.0, 0.5, 1.0]),
        ("log:0.01,1,3", [0.01, 0.1, 1.0]),
        ("lin:0,1/2,3", [0.0, 0.25, 0.5]),
        ("int:2,4", [2, 3, 4]),
    ],
)
def test_ranges(text, values):
    parsed = range_values("field", text)
    assert parsed == values
    assert list(map(type, parsed)) == list(map(type, values))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a value is missing"),
        ("0.1,,0.2", "a value is missing"),
        ("0.1:0.5", "must have three parts"),
        ("1:2:3:4", "must have three parts"),
        ("0.1:0.5:0", "the step of `0.1:0.5:0` is 0"),
        ("a,b", "got 'a'"),
        (":1:2", "got ''"),
        ("none:1:2", "expected a finite number, got 'none'"),
        ("0:inf:1", "expected a finite number, got 'inf'"),
        ("-2**0.5:1:1", "got '-2**0.5'"),
        (f"0:1{'0' * 400}:1", "expected a finite number, got '1000"),
        ("0:1:x2", "ends of the same sign"),
        ("-1:1:x2", "ends of the same sign"),
        ("1:8:x1", "a positive factor, not 1"),
        ("1:0:0.1", "leads away from its end"),
        ("8:1:x2", "leads away from its end"),
        ("log:0,1,3", "above 0, for its logarithm"),
        ("log:1,2,3,4", "must have two ends"),
        ("int:1,2.5", "its ends must be integers"),
        ("lin:1,2,1", "must have 2 to 100,000 points, got 1"),
        ("0:1:1e-9", "more than 100,000 values"),
    ],
)
def test_malformed_ranges(text, reason):
    with pytest.raises(ConfigError) as caught:
        range_values("epsilon", text)
    assert str(caught.value).startswith(f"`epsilon={text}` is not a valid range: ")
    assert reason in str(caught.value)
    assert "steps as 0.1:0.5:0.1" in str(caught.value)


def test_range_without_a_number_of_points():
    with pytest.raises(ConfigError, match="needs the number of points of `epsilon`"):
        range_values("epsilon", "log:0.01,1")


# --- points


def test_points_are_the_product(tmp_path):
    grid = make_grid()
    assert len(grid) == 24
    assert grid.ranges == {
        "epsilon": [2.0**power for power in range(-7, -1)],
        "step_size": [None, 0.1],
        "env.walk": [0.01, 0.1],
    }
    rows = grid.run(tmp_path / "grid.sqlite", num_runs=4).rows
    assert rows[1].settings == {"epsilon": 2.0**-7, "step_size": 0.1, "env.walk": 0.01}
    assert rows[1].result.agent == EpsilonGreedy(epsilon=2.0**-7, step_size=0.1)
    assert rows[-1].result.environment == RandomWalk(walk=0.1)


@pytest.mark.parametrize("values", ["0.5,1/2,2**-1", [0.5, np.float64(0.5)], 0.5])
def test_equal_values_are_one_point(values):
    assert len(Grid("epsilon-greedy", {"epsilon": values})) == 1
    assert len(Grid("epsilon-greedy", {"epsilon": [1, 1.0]})) == 1


@pytest.mark.parametrize(
    ("name", "fields", "size"),
    [
        ("bernoulli", {"means": "0.9,0.8;0.5,0.4"}, 2),
        ("bernoulli", {"means": [(0.9, 0.8), [0.5, 0.4]]}, 2),
        ("bernoulli", {"means": (0.9, 0.8)}, 1),
        ("gaussian", {"means": "none;1,2", "noise": "1,2"}, 4),
        ("gaussian", {"means": [None, (1, 2)]}, 2),
        ("gaussian", {"num-arms": "2:6:2"}, 3),
        ("adversarial", {"rewards": np.eye(3)}, 1),
        ("adversarial", {"rewards": [np.eye(3), np.eye(4)]}, 2),
        ("adversarial", {"rewards": [[0.0, 1.0], [1.0, 0.0]]}, 1),
    ],
)
def test_environments(name, fields, size):
    assert len(Grid("ucb", environment_name=name, environment_fields=fields, num_steps=2)) == size


def test_matrices_are_identified_by_digest(tmp_path):
    np.save(tmp_path / "one.npy", np.eye(3))
    np.save(tmp_path / "two.npy", 1 - np.eye(3))
    files = f"{tmp_path}/one.npy;{tmp_path}/two.npy"
    options = {"environment_name": "adversarial", "num_steps": 3}
    grid = Grid("ucb", environment_fields={"rewards": files}, **options)
    table = grid.run(tmp_path / "grid.sqlite", num_runs=4)
    assert [row.settings["env.rewards"] for row in table.rows] == files.split(";")
    same_grid = Grid("ucb", environment_fields={"rewards": np.eye(3)}, **options)
    assert same_grid.run(tmp_path / "grid.sqlite", num_runs=4).computed_run_steps == 0


TWICE = {"num-arms": 2, "num_arms": 3}
VECTOR = {"environment_fields": {"rewards": np.ones(3)}}


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        (("epsilon-gredy",), {}, UnknownNameError, "did you mean 'epsilon-greedy'"),
        (("ucb", {"cc": "1"}), {}, UnknownNameError, "did you mean 'c'"),
        (("ucb",), {"environment_name": "gausian"}, UnknownNameError, "mean 'gaussian'"),
        (("ucb",), {"environment_fields": {"nois": 1}}, UnknownNameError, "mean 'noise'"),
        (("epsilon-greedy", {"epsilon": "0.1,1.5"}), {}, ConfigError, "the point epsilon = 1.5"),
        (("epsilon-greedy", {"epsilon": []}), {}, ConfigError, "one value or more"),
        (("ucb", {"c": "1:9000:1", "step_size": "0.0001:1:0.0001"}), {}, ConfigError, "at most"),
        (("ucb",), {"environment_fields": TWICE}, ConfigError, "given twice"),
        (("ucb",), {"environment_name": "adversarial", **VECTOR}, ConfigError, "shape"),
        (("ucb",), {"num_steps": 0}, ConfigError, "steps"),
        (("ucb",), {"late_steps": 2000}, ConfigError, "late_steps"),
        (("beta-thompson",), {}, ConfigError, "beta-thompson"),
        (("lin-ucb", {"alpha": "1,2"}), {}, ConfigError, "lin-ucb"),
    ],
)
def test_bad_grids_are_refused_before_running(args, kwargs, error, message):
    with pytest.raises(error, match=message) as caught:
        Grid(*args, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"num_runs": 0}, {"seed": -1}, {"threads": 0}])
def test_bad_runs(tmp_path, options):
    with pytest.raises(ConfigError):
        make_grid().run(tmp_path / "grid.sqlite", **options)
    assert not (tmp_path / "grid.sqlite").exists()


# --- bitwise reproducibility


def test_points_equal_single_runs(tmp_path):
    grid = Grid("epsilon-greedy", {"epsilon": "0.01,0.1"}, num_steps=50, late_steps=7)
    table = grid.run(tmp_path / "grid.sqlite", num_runs=2100, seed=2**64 - 1)
    for row, epsilon in zip(table.rows, (0.01, 0.1), strict=True):
        agent = EpsilonGreedy(epsilon=epsilon)
        single = run(
            agent, GaussianRewards(), num_runs=2100, num_steps=50, seed=2**64 - 1, late_steps=7
        )
        assert row.result.sums.to_bytes() == single.sums.to_bytes()
        assert row.result.mean_reward == single.mean_reward
        assert row.result.late_optimal == single.late_optimal
        assert row.result.final_regret == single.final_regret


def test_groups_and_threads_do_not_change_results(tmp_path, monkeypatch):
    files = {}
    for group, threads in ((1, 1), (3, 2), (8, 2), (8, 5)):
        monkeypatch.setattr(jobs, "_MAX_GROUP", group)
        path = tmp_path / f"{group}_{threads}.sqlite"
        table = make_grid().run(path, num_runs=2500, threads=threads)
        assert table.threads == threads
        files[group, threads] = read_sums(path), content(table)
    first, *other_contents = files.values()
    assert all(other == first for other in other_contents)


# --- resume and extend


def test_stored_points_are_not_computed_again(tmp_path, monkeypatch):
    path = tmp_path / "grid.sqlite"
    first = make_grid().run(path, num_runs=100)
    assert first.computed_run_steps == 24 * 100 * 60

    def fail(*args, **kwargs):
        raise AssertionError("computed again")

    monkeypatch.setattr(computation, "chunk_sums", fail)
    second = make_grid().run(path, num_runs=100)
    assert content(second) == content(first)
    assert second.computed_run_steps == 0
    assert math.isnan(second.kernel_share)
    assert second.to_dict()["kernel_share"] is None


@pytest.mark.parametrize("steps", [(100, 2048, 5000), (5000, 100, 6144), (2047, 2049)])
def test_added_runs_equal_runs_at_once(tmp_path, steps):
    grid = Grid("ucb", {"c": "1,2"}, num_steps=30)
    for num_runs in steps:
        table = grid.run(tmp_path / "grown.sqlite", num_runs=num_runs)
        at_once = grid.run(tmp_path / f"{num_runs}.sqlite", num_runs=num_runs)
        assert content(table) == content(at_once)


def test_only_the_last_incomplete_chunk_is_replaced(tmp_path):
    path, grid = tmp_path / "grid.sqlite", Grid("ucb", {"c": "1,2"}, num_steps=30)
    grid.run(path, num_runs=2048 + 100)
    more = grid.run(path, num_runs=2048 + 300)
    assert more.computed_run_steps == 2 * 300 * 30
    pieces = sorted((first, num) for _, _, first, num, _ in read_sums(path))
    assert pieces == [(0, 2048)] * 2 + [(2048, 300)] * 2


def test_other_points_and_seeds_share_the_file(tmp_path):
    path = tmp_path / "grid.sqlite"
    first = make_grid().run(path, num_runs=50)
    before = read_sums(path)
    other = make_grid().run(path, num_runs=50, seed=1)
    longer = make_grid(num_steps=61).run(path, num_runs=50)
    assert other.computed_run_steps == 24 * 50 * 60
    assert longer.computed_run_steps == 24 * 50 * 61
    assert content(other) != content(first)
    after = read_sums(path)
    assert len(after) == 3 * 24
    assert before.items() <= after.items()
    # Some points are new and some are stored.
    wider = make_grid(agent_fields={"epsilon": "2**-7,0.9", "step_size": "none"})
    assert wider.run(path, num_runs=50).computed_run_steps == 2 * 50 * 60


def test_sums_of_other_kernel_versions_are_kept(tmp_path, monkeypatch):
    path, grid = tmp_path / "grid.sqlite", Grid("ucb", {"c": "1,2"}, num_steps=30)
    old = grid.run(path, num_runs=50)
    assert old.num_of_other_kernels == 0
    before = read_sums(path)
    monkeypatch.setattr(grid_module, "KERNEL_VERSION", grid_module.KERNEL_VERSION + 1)
    new = grid.run(path, num_runs=50)
    assert new.computed_run_steps == 2 * 50 * 30
    assert new.num_of_other_kernels == 2
    after = read_sums(path)
    assert len(after) == 4
    assert before.items() <= after.items()


# --- interrupted grids

_CHILD = """
import sys
from tests.bandits.test_grid import make_large_grid
grid = make_large_grid(int(sys.argv[2]))
grid.run(sys.argv[1] + ".first", num_runs=1)  # load the kernels, so that kills hit a running grid
print("ready", flush=True)
grid.run(sys.argv[1], num_runs=7000, threads=2)
print("finished", flush=True)
"""


def make_large_grid(num_steps=100):
    """Return a grid of 36 points, with 4 chunks each for 7,000 runs."""
    return make_grid(environment_fields={"walk": [0.01, 0.1, 1.0]}, num_steps=num_steps)


def finish_large_grid(path, num_steps=100):
    make_large_grid(num_steps).run(path, num_runs=7000, threads=2)
    return read_sums(path)


def start_child(path, num_steps=100):
    """Run the large grid in a process."""
    command = [sys.executable, "-c", _CHILD, str(path), str(num_steps)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


def finish(child):
    # `communicate` would miss output that `readline` has buffered.
    assert child.stdout.read() == "finished\n"
    assert child.wait(timeout=120) == 0


def read_leftovers(path):
    """Read the sums of a killed process from a copy. Only the next grid may recover the log."""
    copy = path.with_name("copy.sqlite")
    for suffix in ("", "-wal"):
        if Path(f"{path}{suffix}").exists():
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    with sqlite3.connect(copy) as connection:
        has_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
    connection.close()
    sums = read_sums(copy) if has_tables else {}  # empty before its first transaction
    for suffix in ("", "-wal", "-shm"):
        Path(f"{copy}{suffix}").unlink(missing_ok=True)
    return sums


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    """The finished table equals that of an uninterrupted grid, and no stored sums are lost."""
    kills, num_steps, rng = 12, 400, random.Random(20)
    started_at = time.monotonic()
    whole = finish_large_grid(tmp_path / "whole.sqlite", num_steps)
    assert len(whole) == 36 * 4
    usual_s = time.monotonic() - started_at

    hits, path, before = 0, tmp_path / "killed.sqlite", {}
    num_files = 0
    while hits < kills:
        child = start_child(path, num_steps)
        # Kills cover the time from creating the file to its last row. Commits are 0.25 s apart.
        try:
            child.wait(rng.uniform(0, 0.6 * usual_s))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        hits += child.returncode == -signal.SIGKILL
        child.stdout.close()
        current = read_leftovers(path)
        assert before.items() <= current.items() <= whole.items()
        before = current
        if child.returncode == 0:  # finished between two kills: the next ones hit a new grid
            assert current == whole
            num_files += 1
            path, before = tmp_path / f"killed_{num_files}.sqlite", {}
    assert finish_large_grid(path, num_steps) == whole


def test_ctrl_c_keeps_finished_chunks(tmp_path, monkeypatch):
    path = tmp_path / "grid.sqlite"
    whole = make_grid().run(tmp_path / "whole.sqlite", num_runs=2500)
    monkeypatch.setattr(computation, "_COMMIT_S", 1e9)
    reports = []

    def interrupt(progress):
        reports.append(progress)
        if progress.finished_run_steps > 0.4 * progress.total_run_steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_grid().run(path, num_runs=2500, on_progress=interrupt)
    num_stored = sum(num for _, _, _, num, _ in read_sums(path)) * 60
    assert reports[-1].finished_run_steps <= num_stored < reports[-1].total_run_steps
    resumed = make_grid().run(path, num_runs=2500)
    assert resumed.computed_run_steps == 24 * 2500 * 60 - num_stored
    assert content(resumed) == content(whole)
    assert read_sums(path) == read_sums(whole.path)


def test_kernel_error_keeps_finished_chunks(tmp_path, monkeypatch):
    path, original, count = tmp_path / "grid.sqlite", computation.chunk_sums, []
    threads = set(threading.enumerate())

    def fail(*args, **kwargs):
        count.append(1)
        if len(count) == 4:
            raise BanditError("an arm gave NaN")
        return original(*args, **kwargs)

    monkeypatch.setattr(computation, "chunk_sums", fail)
    with pytest.raises(BanditError, match="an arm gave NaN"):
        make_grid().run(path, num_runs=2500, threads=1)
    monkeypatch.setattr(computation, "chunk_sums", original)
    num_stored = len(read_sums(path))
    assert num_stored > 0
    table = make_grid().run(path, num_runs=2500)
    assert content(table) == content(make_grid().run(tmp_path / "whole.sqlite", num_runs=2500))
    assert set(threading.enumerate()) <= threads  # threads end with their grid


def test_commits_are_at_most_a_quarter_second_apart(tmp_path, monkeypatch):
    """A tenth of a second passes per report: every third report follows a commit."""
    path, ticks, num_behind = tmp_path / "grid.sqlite", itertools.count(), [0]
    clock = SimpleNamespace(monotonic=lambda: next(ticks) / 10, perf_counter=time.perf_counter)

    def on_progress(progress):
        is_stored = len(read_sums(path)) == progress.finished_run_steps // (50 * 60)
        num_behind.append(0 if is_stored else num_behind[-1] + 1)

    monkeypatch.setattr(computation, "time", clock)
    monkeypatch.setattr(jobs, "_MAX_GROUP", 1)
    make_grid().run(path, num_runs=50, threads=2, on_progress=on_progress)
    assert len(num_behind) > 3  # jobs that end during a report share the next one
    assert 1 <= max(num_behind) <= 2


def test_progress(tmp_path):
    path, reports = tmp_path / "grid.sqlite", []
    make_grid().run(path, num_runs=2048)
    make_grid().run(path, num_runs=5000, on_progress=reports.append)
    first, last = reports[0], reports[-1]
    assert first.stored_run_steps == first.finished_run_steps == 24 * 2048 * 60
    assert last.finished_points == last.total_points == 24
    assert last.finished_run_steps == last.total_run_steps == 24 * 5000 * 60
    assert last.remaining_s == 0
    assert all(a.finished_run_steps <= b.finished_run_steps for a, b in pairwise(reports))


def test_two_processes_at_once(tmp_path):
    path = tmp_path / "grid.sqlite"
    children = [start_child(path) for _ in range(2)]
    for child in children:
        finish(child)
    assert read_sums(path) == finish_large_grid(tmp_path / "whole.sqlite")


def test_chunk_replaced_by_another_process_is_computed_again(tmp_path, monkeypatch):
    """Another process adds runs meanwhile and replaces our last chunk."""
    path, grid = tmp_path / "grid.sqlite", Grid("ucb", {"c": "1,2"}, num_steps=30)
    expected = grid.run(tmp_path / "whole.sqlite", num_runs=100)
    pieces, calls = GridFile.pieces, []

    def pieces_and_add_runs(self, points):
        result = pieces(self, points)
        calls.append(1)
        if len(calls) == 1:
            grid.run(path, num_runs=3000)
        return result

    grid.run(path, num_runs=100)
    monkeypatch.setattr(GridFile, "pieces", pieces_and_add_runs)
    assert content(grid.run(path, num_runs=100)) == content(expected)
    assert len(calls) > 2


# --- files


def assert_refused(path, error, message):
    """Check that the grid refuses the file and leaves it unchanged."""
    before = path.read_bytes()
    with pytest.raises(error, match=message) as caught:
        make_grid().run(path, num_runs=50)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.fixture
def stored_grid(tmp_path):
    """Return a function that stores a grid, changes its tables and returns the file."""

    def store(*statement):
        path = tmp_path / "grid.sqlite"
        make_grid().run(path, num_runs=50)
        with sqlite3.connect(path) as connection:
            if statement:
                connection.execute(*statement)
        connection.close()
        return path

    return store


def test_files_of_other_programs(tmp_path):
    path = tmp_path / "grid.sqlite"
    path.write_text("something of the user's, " * 100)
    assert_refused(path, BanditError, "is not a hotloop grid")
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (one, two, three)")
        connection.execute("CREATE TABLE bookmarks (address)")
    connection.close()
    assert_refused(path, BanditError, "not a hotloop grid: it has the tables bookmarks, meta")


def test_grid_of_another_format(stored_grid):
    path = stored_grid("UPDATE meta SET value = '9' WHERE name = 'version'")
    assert_refused(path, BanditError, "is a grid of format 9, made by hotloop .* reads format 2")


@pytest.mark.parametrize("size", [50, 4000, 4096, 100_000, 1_000_001, -4096, -5000])
def test_truncated_file(tmp_path, size):
    path = tmp_path / "grid.sqlite"
    make_grid(num_steps=1000).run(path, num_runs=50)
    os.truncate(path, size if size > 0 else path.stat().st_size + size)
    assert_refused(path, BanditError, "damaged|not a hotloop grid")


def test_empty_file_is_a_new_grid(tmp_path):
    """A file without a first transaction is a new grid too."""
    path = tmp_path / "grid.sqlite"
    path.touch()
    assert make_grid().run(path, num_runs=50).computed_run_steps > 0
    connection = sqlite3.connect(tmp_path / "begun.sqlite")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert make_grid().run(tmp_path / "begun.sqlite", num_runs=50).computed_run_steps > 0


def test_missing_table(stored_grid):
    path = stored_grid("DROP TABLE sums")
    assert_refused(path, BanditError, "damaged .no such table: sums")


@pytest.mark.parametrize("blob", [b"", b"x" * 40, None])
def test_damaged_sums(stored_grid, blob):
    path = stored_grid()
    if blob is None:  # one bit
        with sqlite3.connect(path) as connection:
            (blob,) = connection.execute("SELECT blob FROM sums WHERE point = 7").fetchone()
        connection.close()
        blob = blob[:100] + bytes([blob[100] ^ 1]) + blob[101:]
    path = stored_grid("UPDATE sums SET blob = ? WHERE point = 7", (blob,))
    assert_refused(path, BanditError, "point 7")


def test_damaged_bytes_are_detected(tmp_path):
    """A damaged file is refused, or gives the results of the whole one."""
    path = tmp_path / "grid.sqlite"
    grid = make_grid()
    grid.run(path, num_runs=50)
    whole, configs = path.read_bytes(), list(grid._points)

    def read(path):
        with GridFile(path, seed=0, kernel_version=KERNEL_VERSION) as file:
            ids = file.ids(configs)
            pieces = sorted(file.pieces(ids))
            sums = {piece: file.sums(piece) for piece in pieces}
            return {configs[ids.index(x.point)]: y and y.to_bytes() for x, y in sums.items()}

    content = read(path)
    assert len(content) == len(configs)
    messages = []
    for seed in range(60):
        rng = random.Random(seed)
        damaged = tmp_path / f"{seed}.sqlite"
        damaged.write_bytes(rng.choice([flip, cut, zero, insert])(whole, rng))
        try:
            read_content = read(damaged)
        except BanditError as error:
            messages.append(str(error))
        else:  # a point that is missing is computed again
            assert read_content.items() <= content.items()
    assert len(messages) >= 20
    assert all(str(tmp_path) in message for message in messages)


def test_unwritable_targets(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "grid.sqlite", tmp_path / "folder"):
        with pytest.raises(OutputError, match="can't be written"):
            make_grid().run(path, num_runs=50)
    new_path = tmp_path / "new" / "folder" / "grid.sqlite"
    make_grid().run(new_path, num_runs=50)
    assert [file.name for file in new_path.parent.iterdir()] == ["grid.sqlite"]


def test_full_disk_keeps_stored_chunks(tmp_path):
    """After space is freed, the command continues."""
    path = tmp_path / "grid.sqlite"
    setup, _, _ = _CHILD.partition('print("ready"')
    limited = f"""{setup}
import resource
from hotloop.bandits.grids import computation
from hotloop.errors import OutputError
computation._COMMIT_S = 0
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
try:
    grid.run(sys.argv[1], num_runs=7000)
except OutputError as error:
    print(error)
"""
    child = subprocess.run(
        [sys.executable, "-c", limited, str(path), "100"],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "grid.sqlite can't be written" in child.stdout, child.stderr
    partial = read_sums(path)
    assert 0 < len(partial) < 36 * 4
    assert finish_large_grid(path) == finish_large_grid(tmp_path / "whole.sqlite")
    assert partial.items() <= read_sums(path).items()


def test_pieces_of_a_file(tmp_path):
    """Pieces that are added twice are stored once."""
    grid = Grid("ucb", num_steps=10)
    table = grid.run(tmp_path / "grid.sqlite", num_runs=5)
    sums = table.rows[0].result.sums
    with GridFile(tmp_path / "own.sqlite", seed=3, kernel_version=1) as file:
        first, second = file.ids(["{}", '{"a": 1}'])
        assert file.ids(['{"a": 1}']) == [second]
        rows = [(Piece(first, 0, 5), sums.to_bytes()), (Piece(second, 0, 5), sums.to_bytes())]
        file.add(rows)
        file.add(rows)
        assert file.pieces([first, second]) == {Piece(first, 0, 5), Piece(second, 0, 5)}
        assert file.sums(Piece(first, 0, 5)).to_bytes() == sums.to_bytes()
        assert file.sums(Piece(first, 0, 6)) is None
    with GridFile(tmp_path / "own.sqlite", seed=4, kernel_version=1) as file:
        assert file.pieces([first, second]) == set()


# --- the table


@pytest.fixture
def table(tmp_path):
    grid = Grid("epsilon-greedy", {"epsilon": "0,0.1,1", "step_size": "none,0.1"}, num_steps=200)
    return grid.run(tmp_path / "grid.sqlite", num_runs=600)


def test_best_and_sorted(table):
    assert [row.settings["epsilon"] for row in table.sorted()[-2:]] == [1, 1]  # random: reward 0
    assert table.best().settings["epsilon"] == 0.1
    regrets = [row.result.final_regret.mean for row in table.sorted("final_regret")]
    assert regrets == sorted(regrets)
    with pytest.raises(BanditError, match="did you mean 'mean_reward'"):
        table.best("mean_rewards")


def test_to_dict(table):
    content_dict = json.loads(json.dumps(table.to_dict(curves=True), allow_nan=False))
    assert content_dict["num_runs"] == 600
    assert 0 < content_dict["kernel_share"] <= 1
    assert content_dict["ranges"] == {"epsilon": [0, 0.1, 1], "step_size": [None, 0.1]}
    point = content_dict["points"][3]
    assert point["settings"] == {"epsilon": 0.1, "step_size": 0.1}
    assert point["agent"]["initial_value"] == 0
    assert point["mean_reward"]["mean"] == table.rows[3].result.mean_reward.mean
    assert len(point["reward"]) == 200


def test_parquet(table, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table.save_parquet(tmp_path / "new" / "grid.parquet")
    columns = parquet.read_table(tmp_path / "new" / "grid.parquet").to_pydict()
    assert columns["epsilon"] == [0.0, 0.0, 0.1, 0.1, 1.0, 1.0]
    assert columns["step_size"] == [None, 0.1] * 3
    assert columns["env.num_arms"] == [10] * 6
    assert columns["mean_reward"] == [row.result.mean_reward.mean for row in table.rows]
    assert columns["late_optimal_se"] == [row.result.late_optimal.se for row in table.rows]
    assert columns["step"][0] == list(range(1, 201))
    assert columns["regret"][5] == table.rows[5].result.regret.tolist()
    types = parquet.read_schema(tmp_path / "new" / "grid.parquet")
    assert str(types.field("initial_value").type) == "double"
    assert str(types.field("env.means").type) in ("null", "list<element: double>")
    with pytest.raises(OutputError, match="can't be written"):
        table.save_parquet(tmp_path / "grid.sqlite" / "grid.parquet")


def test_parquet_without_pyarrow(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("parquet"))):
        table.save_parquet(tmp_path / "grid.parquet")


def test_parquet_of_matrices(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    fields = {"rewards": [np.eye(3), 1 - np.eye(3)]}
    grid = Grid("exp3", environment_name="adversarial", environment_fields=fields, num_steps=3)
    table = grid.run(tmp_path / "grid.sqlite", num_runs=10, seed=2**64 - 1)
    columns = parquet.read_table(table.save_parquet(tmp_path / "x.parquet")).to_pydict()
    assert len(set(columns["env.rewards"])) == 2
    assert columns["seed"] == [2**64 - 1] * 2


@pytest.mark.parametrize(
    ("ranges", "axes"),
    [
        ({"epsilon": [0.1, 0.2]}, ("epsilon", None)),
        ({"epsilon": [0.1, 0.2], "c": [1, 2]}, ("epsilon", "c")),
        ({"step_size": [None, 0.1], "epsilon": [0.1, 0.2]}, ("epsilon", "step_size")),
        ({"baseline": [True, False], "step_size": [0.1, 0.2]}, ("step_size", "baseline")),
    ],
)
def test_plot_axes(ranges, axes):
    assert plot_axes(ranges) == axes


@pytest.mark.parametrize(
    "ranges",
    [{}, {"baseline": [True, False]}, {"a": [1, 2], "b": [1, 2], "c": [1, 2]}],
)
def test_plot_axes_need_one_or_two_ranges(ranges):
    with pytest.raises(ConfigError, match="one or two fields with several values") as caught:
        plot_axes(ranges)
    assert f"got {', '.join(ranges) or 'none'}: " in str(caught.value)


@pytest.mark.parametrize("quantity", ["mean_reward", "final_regret"])
@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"epsilon": "0.1,0.2"}, ["epsilon, dimensionless"]),
        ({"epsilon": "0.1,0.2", "step_size": "none,0.1"}, ["step_size = none", "step_size = 0.1"]),
        ({"epsilon": "0.1,0.2", "initial_value": "0,5"}, ["initial_value, units of reward"]),
    ],
)
def test_pictures(tmp_path, fields, texts, quantity):
    matplotlib = pytest.importorskip("matplotlib")
    grid = Grid("epsilon-greedy", fields, num_steps=50)
    table = grid.run(tmp_path / "grid.sqlite", num_runs=100)
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text as text
        path = table.save_picture(tmp_path / "picture.svg", quantity)
    svg = path.read_text()
    label = "reward per step" if quantity == "mean_reward" else "regret at the end, units of reward"
    assert table.title == "epsilon-greedy · gaussian, 10 arms · 100 runs of 50 steps · seed 0"
    for text in (*texts, label, "epsilon-greedy · gaussian, 10 arms"):
        assert text in svg
    with pytest.raises(ConfigError, match="must end in"):
        table.save_picture(tmp_path / "picture.jpg")
