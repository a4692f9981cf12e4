"""The file of results: storing, claiming and rejected files."""

import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hotloop.errors import BanditError, ConfigError, OutputError
from hotloop.sweeps import Results, Run
from hotloop.sweeps.bandits.grid_file import GridFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep.sqlite"


def finished(trial=1, seed=1, score=3.0, state="done"):
    return Run(trial, seed, 100, "tune", state, score, "", 0.5, [(50, 1.0), (100, score)], "d")


def test_written_results_are_read_back(path):
    results = Results(path)
    results.set("algorithm", "ppo")
    assert results.add_trial(1, {"hidden_sizes": (64, 64)}, {"system": {}})
    assert not results.add_trial(1, {"hidden_sizes": (32,)}, {})
    assert results.claim(1, 1, 100, "tune", "0.1", "d")
    results.finish(finished())
    results.close()
    again = Results(path)
    assert again.get("algorithm") == "ppo"
    assert again.get("nothing") is None
    assert again.trials() == [(1, {"hidden_sizes": [64, 64]}, {"system": {}})]
    (run,) = again.runs("tune")
    assert run.score == 3.0
    assert run.curve == [[50, 1.0], [100, 3.0]]
    assert again.runs("test") == []
    again.close()


def test_a_run_is_claimed_once_and_again_after_its_process_ends(path):
    first, other = Results(path), Results(path)
    other.owner = first.owner.replace(f":{os.getpid()}:", ":1:").rsplit(":", 1)[0] + ":12345"
    assert first.claim(1, 1, 100, "tune", "0.1", "d")
    assert not other.claim(1, 1, 100, "tune", "0.1", "d")  # its owner is alive
    assert other.claim(1, 2, 100, "tune", "0.1", "d")
    assert first.claim(1, 2, 100, "tune", "0.1", "d")  # no such process
    first.finish(finished(seed=2))
    assert not first.claim(1, 2, 100, "tune", "0.1", "d")  # it is finished
    assert first.claim(1, 2, 200, "tune", "0.1", "d")  # another budget
    assert first.claim(1, 2, 100, "test", "0.1", "d")  # another purpose


def test_two_sweeps_of_one_file(path):
    code = (
        "import sys, time; from pathlib import Path; from hotloop.sweeps import Results\n"
        "r = Results(Path(sys.argv[1])); r.enter(may_join=False); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        results = Results(path)
        with pytest.raises(
            ConfigError, match=rf"process {process.pid} is running .* pass `--join`"
        ):
            results.enter(may_join=False)
        results.enter(may_join=True)
    finally:
        process.kill()
        process.wait()
    Results(path).enter(may_join=True)
    results.close()


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be one", b"\0" * 100])
def test_an_unrelated_file_is_rejected(path, content):
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not a hotloop sweep, or it is damaged"):
        Results(path)
    assert path.read_bytes() == content


def test_an_unrelated_database_is_rejected(path):
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE bookmarks (name TEXT)")
    file.commit()
    file.close()
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="not a hotloop sweep: it has the tables bookmarks"):
        Results(path)
    assert path.read_bytes() == content


def test_grids_and_sweeps_refuse_each_other_s_files(path, tmp_path):
    GridFile(tmp_path / "grid.sqlite", seed=0, kernel_version=1).close()
    with pytest.raises(ConfigError, match="not a hotloop sweep: it has the tables meta, points"):
        Results(tmp_path / "grid.sqlite")
    Results(path).close()
    with pytest.raises(BanditError, match="not a hotloop grid: it has the tables owners, runs"):
        GridFile(path, seed=0, kernel_version=1)


def test_concurrent_creation_of_a_file(path):
    def make(number):
        results = Results(path)
        results.set(f"made by {number}", number)
        results.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(24)))
    results = Results(path)
    assert [results.get(f"made by {number}") for number in range(24)] == list(range(24))
    results.close()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't be written"):
        Results(tmp_path / "file" / "sweep.sqlite")


def test_a_file_that_was_cut_short_is_refused(path):
    results = Results(path)
    for number in range(1, 500):
        results.add_trial(number, {"learning_rate": 0.1}, {})
    results.close()
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ConfigError, match="damaged"):
        Results(path).trials()


def test_a_file_of_another_version_is_refused(path):
    Results(path).close()
    file = sqlite3.connect(path)
    file.execute("UPDATE sweep SET value = '99' WHERE name = 'format'")
    file.commit()
    file.close()
    with pytest.raises(ConfigError, match=r"of format 99, made by hotloop .* reads format 1"):
        Results(path)


def test_runs_are_exported_with_their_options(path, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    results = Results(path)
    results.add_trial(1, {"learning_rate": 0.1}, {})
    results.claim(1, 1, 100, "tune", "0.1", "d")
    results.finish(finished())
    results.export(tmp_path / "runs.parquet")
    (row,) = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert (row["score"], row["param.learning_rate"]) == (3.0, "0.1")
