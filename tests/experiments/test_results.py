"""The file of results: storing, claiming and rejected files."""

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotloop.bandits.grids.grid_file import GridFile
from hotloop.base import results_file
from hotloop.base.processes import boot_id
from hotloop.errors import BanditError, ConfigError, HotloopError, OutputError
from hotloop.experiments import Plan, Results, Run, read_table
from hotloop.experiments.results import is_alive


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep.sqlite"


PLAN = Plan(
    algorithm="ppo",
    config={"env_id": "CartPole-v1", "total_timesteps": 100},
    space={"learning_rate": "log:1e-4,1e-2", "hidden_sizes": [[64, 64], [32]]},
    sampler="random",
    trials=30,
    seeds=(1, 2, 3),
    jobs=2,
    runs_per_update=3,
)


def finished(trial=1, seed=1, score=3.0, state="done"):
    return Run(trial, seed, 100, "tune", state, score, "", 0.5, [(50, 1.0), (100, score)], "d")


def test_a_plan_has_python_numbers():
    plan = replace(PLAN, trials=np.int64(2), jobs=np.float32(1))
    assert (plan.trials, plan.jobs) == (2, 1.0)
    assert {type(plan.trials), type(plan.jobs)} == {int, float}


def test_written_results_are_read_back(path):
    results = Results(path)
    assert results.plan is None
    results.plan = PLAN
    assert results.add_trial(1, {"hidden_sizes": (64, 64)}, {"system": {}})
    assert not results.add_trial(1, {"hidden_sizes": (32,)}, {})
    assert results.claim(1, 1, 100, "tune", "0.1", "d")
    results.finish(finished())
    results.close()
    again = Results(path)
    assert again.plan == PLAN
    assert again.trials() == [(1, {"hidden_sizes": [64, 64]}, {"system": {}})]
    (run,) = again.runs("tune")
    assert run.score == 3.0
    assert run.curve == [(50, 1.0), (100, 3.0)]
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


@pytest.mark.parametrize("numbers", ["", ":", ":x:1", ":1:2:3", f":{2**80}:1", f":{'9' * 5000}:1"])
def test_a_malformed_owner_is_no_process(numbers):
    assert not is_alive(boot_id() + numbers)


def test_two_sweeps_of_one_file(path):
    code = (
        "import sys, time; from pathlib import Path; from hotloop.experiments import Results\n"
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


def change(path, statement, *values):
    """Change a file by a statement of SQL."""
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(statement, values)


def test_an_unrelated_database_is_rejected(path):
    change(path, "CREATE TABLE bookmarks (name TEXT)")
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="not a hotloop sweep: it has the tables bookmarks"):
        Results(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("table", ["sweep", "trials"])
def test_views_without_an_end_are_not_queried(path, table):
    Results(path).close()
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript(
            f"ALTER TABLE {table} RENAME TO hidden; CREATE VIEW {table} AS {endless} "
            "SELECT x AS name, x AS value, x AS number, x AS params, x AS attrs, x AS crc32 FROM c"
        )
        file.commit()
    with pytest.raises(ConfigError, match="but not a hotloop sweep"):
        Results(path)


def test_a_long_name_of_a_version_is_cut(path):
    Results(path).close()
    change(path, "UPDATE sweep SET value = ? WHERE name = 'format'", "9" * 10**6)
    with pytest.raises(ConfigError) as caught:
        Results(path)
    assert len(str(caught.value)) < 1000


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
        results.add_trial(number, {"made by": number}, {})
        results.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(24)))
    results = Results(path)
    assert [trial.params for trial in results.trials()] == [{"made by": x} for x in range(24)]
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
    change(path, "UPDATE sweep SET value = '99' WHERE name = 'format'")
    with pytest.raises(ConfigError, match=r"of format 99, made by hotloop .* reads format 3"):
        Results(path)


def test_runs_are_exported_with_their_options(path, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    results = Results(path)
    results.add_trial(1, {"learning_rate": 0.1}, {})
    results.claim(1, 1, 100, "tune", "0.1", "d")
    results.finish(finished())
    results.close()
    read_table(path).to_parquet(tmp_path / "runs.parquet")
    (row,) = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert (row["score"], row["param.learning_rate"]) == (3.0, "0.1")


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Return a file of a sweep with 30 trials, and its content."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.sqlite"
    results = Results(path)
    results.enter(may_join=False)
    results.plan = PLAN
    for trial in range(1, 31):
        results.add_trial(trial, {"learning_rate": 0.1 * trial, "hidden_sizes": [64, 64]}, {"a": 1})
        results.claim(trial, 1, 100, "tune", "0.1", f"sweep/trial_{trial:04}")
        results.finish(finished(trial, score=trial / 7))
    results._sqlite.close()  # like a kill, since its owner stays registered
    content = read_all(path)
    return path, content


def read_all(path):
    """Return all that a sweep reads from its file."""
    results = Results(path)
    try:
        content = (
            results.plan,
            results.trials(),
            results.runs(),
            results.tries(3, 1, 100, "tune"),
        )
        results.enter(may_join=True)
        return content
    finally:
        results._sqlite.close()


@pytest.mark.parametrize("part", range(2))
def test_damaged_bytes_are_detected(intact, tmp_path, part):
    source, content = intact
    whole = source.read_bytes()
    assert len(whole) > 10_000
    messages = []
    for seed in range(40):
        rng = random.Random(f"{part} {seed}")
        data, start = bytearray(whole), rng.randrange(len(whole))
        kind = rng.choice(["flip", "digit", "zeros", "cut", "noise"])
        if kind == "cut":
            del data[start:]
        else:
            end = start + {"zeros": 200, "noise": 20}.get(kind, 1)
            for index in range(start, min(end, len(data))):
                flipped = data[index] ^ (1 if kind == "digit" else 1 << rng.randrange(8))
                data[index] = {"zeros": 0, "noise": rng.randrange(256)}.get(kind, flipped)
        path = tmp_path / f"{seed}.sqlite"
        path.write_bytes(data)
        try:
            read_content = read_all(path)
        except HotloopError as error:
            messages.append(str(error))
        else:  # a byte that nothing reads
            assert read_content == content or not data, (kind, start)
    assert len(messages) >= 8
    assert all(str(tmp_path) in message and "\n" not in message for message in messages)


def test_changed_cells_are_detected(intact, tmp_path):
    source, _ = intact
    changes = ["", "{", "{}", "[" * 5000, b"\xff", 7, None]
    num_cells = 0
    for table in ("sweep", "trials", "runs", "owners"):
        connection = sqlite3.connect(source)
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.close()
        for name in names:
            for change in changes:
                path = tmp_path / "changed.sqlite"
                shutil.copy(source, path)
                connection = sqlite3.connect(path)
                where = "rowid = 3" if table in ("trials", "runs") else "crc32 IS NOT NULL"
                with contextlib.suppress(sqlite3.IntegrityError), connection:
                    connection.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (change,))
                num_changed = connection.total_changes
                connection.close()
                if num_changed:
                    num_cells += 1
                    with pytest.raises(ConfigError, match=f"{path} .*damaged"):
                        read_all(path)
    assert num_cells > 50


RUN = {"trial": 1, "seed": 1, "steps": 9, "purpose": "tune", "version": "0", "state": "done"}
RUN |= {"owner": "me", "tries": 1, "score": 2.0, "reason": "", "seconds": 0.5, "curve": "[]"}
RUN |= {"directory": "d"}


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("trials", (1, "[]", "{}")),
        ("sweep", ("plan", "{}")),
        *(
            ("runs", tuple((RUN | change).values()))
            for change in (
                {"state": "lost"},
                {"score": "high"},
                {"score": float("inf")},
                {"seconds": b"1"},
                {"seed": "one"},
                {"reason": b"x"},
                {"curve": f"[[1, {10**400}]]"},
                {"curve": "[[Infinity, 1.0]]"},
            )
        ),
    ],
)
def test_an_intact_checksum_of_an_invalid_row(path, table, row):
    results = Results(path)
    with results._transaction():
        results._store(table, *row)
    results.close()
    with pytest.raises(ConfigError, match=r"or it is damaged .a row in the table"):
        read_all(path)


# --- paths ----------------------------------------------------------------------------------------


def test_files_that_differ_in_their_suffix_have_their_own_directories(tmp_path):
    names = ["one.sqlite", "one.db", "one", "one.1.sqlite", "one.2.sqlite", "one.2.db", ".sqlite"]
    sweeps = [Results(tmp_path / name) for name in names]
    for kind in ("directory", "report_directory"):
        directories = {getattr(results, kind) for results in sweeps}
        assert len(directories) == len(names)
        assert not directories & {results.path for results in sweeps[:2]}
    assert sweeps[0].directory == tmp_path / "one"


def test_the_directory_of_another_sweep_is_refused(path):
    (path.with_suffix("") / "trial_0001__seed_1__100").mkdir(parents=True)
    results = Results(path)
    with pytest.raises(ConfigError, match=r"/sweep has the runs of another sweep, .* `--file`"):
        results.make_directory()
    results.add_trial(1, {}, {})
    results.make_directory()
    other = Results(path.with_name("other.sqlite"))
    other.directory.write_text("a file")
    with pytest.raises(OutputError, match=r"can't be created .a file has its name.: pass another"):
        other.make_directory()


def test_pipes_and_directories_are_refused(path, tmp_path):
    os.mkfifo(path)
    for place in (path, tmp_path, Path("/dev/zero")):
        with pytest.raises(
            OutputError, match=r"(it is a directory|it is not a regular file).: choose"
        ):
            Results(place)


def test_a_reader_does_not_wait_for_a_writer(intact, tmp_path, monkeypatch):
    shutil.copy(intact[0], tmp_path / "sweep.sqlite")
    monkeypatch.setattr(results_file, "_WAIT_S", 0.0)
    writer = sqlite3.connect(tmp_path / "sweep.sqlite")
    writer.execute("BEGIN IMMEDIATE")
    results, statements = Results(tmp_path / "sweep.sqlite"), []
    results._sqlite.set_trace_callback(statements.append)
    assert len(results.trials()) == 30
    results.close()
    assert not [text for text in statements if not text.startswith("SELECT")]
    writer.close()


def test_bytes_of_a_path_that_are_no_utf_8(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.sqlite"))
    results = Results(path)
    results.make_directory()
    results.add_trial(1, {}, {})
    assert results.claim(1, 1, 100, "tune", "0.1", str(results.directory / "trial"))
    results.finish(finished()._replace(reason="caf\udce9"))
    (run,) = results.runs()
    assert run.directory.endswith("/caf\N{REPLACEMENT CHARACTER}/trial")
    results.close()
