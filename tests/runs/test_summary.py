import json
import os
import subprocess
import sys

import pytest

from hotloop.errors import RunDirectoryError
from hotloop.runs.summary import find_runs, summarize
from tests.runs.run_factory import make_run


def test_a_finished_run(tmp_path):
    run = make_run(
        tmp_path / "run", seed=7, returns=[[1.0, 2.0], [6.0]], evaluations=[5.0, float("nan")]
    )
    summary = summarize(run)
    assert summary.to_json() == {
        "path": str(run),
        "env_id": "CartPole-v1",
        "algorithm": "ppo",
        "seed": 7,
        "status": "finished",
        "timesteps": 2000,
        "total_timesteps": 2000,
        "mean_return": 3.0,
        "std_return": pytest.approx(2.1602, abs=1e-4),
        "best_evaluation": 5.0,
        "best_evaluation_std": 1.0,
        "num_episodes": 3,
        "steps_per_s": 2000.0,
        "started_at": "2026-01-31T12:00:00+0000",
        "stop_reason": None,
    }
    assert summary.start_time.timestamp() == 1769860800
    assert json.loads(json.dumps(summary.to_json()))


def test_the_mean_is_over_the_last_hundred_episodes(tmp_path):
    summary = summarize(make_run(tmp_path / "run", returns=[[-1e6] * 5, [1.0] * 50 + [3.0] * 50]))
    assert summary.mean_return == 2.0


def test_a_run_that_has_logged_nothing(tmp_path):
    run = make_run(tmp_path / "run", returns=[], total_timesteps=100)
    (run / "metrics.jsonl").unlink()
    summary = summarize(run)
    assert (summary.timesteps, summary.mean_return, summary.steps_per_s) == (0, None, None)
    assert summary.status == "unknown"  # and it has no recording


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("timing.stop()", "stopped"),
        ("os.kill(os.getpid(), 9)", "killed"),
        ("print(flush=True), time.sleep(60)", "running"),
    ],
)
def test_how_a_run_ended(tmp_path, ending, status):
    """The older recording of a resumed run is ignored."""
    run = make_run(tmp_path / "run", total_timesteps=10_000)
    code = (
        "import os, time\nfrom hotloop import timing\n"
        f"timing.start({str(run / 'timing')!r}, component='learner')\n"
    )
    first = "timing.stop()" if status == "killed" else "os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code + first])
    process = subprocess.Popen([sys.executable, "-c", code + ending], stdout=subprocess.PIPE)
    try:
        process.stdout.readline() if status == "running" else process.wait(timeout=200)
        assert summarize(run).status == status
    finally:
        process.kill()
        process.wait()


def cut_off(run):
    (run / "config.json").write_text((run / "config.json").read_text()[:40])


def lose(run):
    (run / "config.json").unlink()


def scramble(run):
    (run / "metrics.jsonl").write_text("{}\n[1, 2]\n")


def garble(run):
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n")


def misplace(run):
    (run / "config.json").write_text('{"config": 3}')


@pytest.mark.parametrize("damage", [cut_off, lose, scramble, garble, misplace])
def test_a_damaged_run_is_one_error(tmp_path, damage):
    run = make_run(tmp_path / "run")
    damage(run)
    assert find_runs(tmp_path) == [run]
    with pytest.raises(RunDirectoryError, match=r"damaged|no config\.json") as caught:
        summarize(run)
    assert str(run) in str(caught.value)


def test_runs_are_found_in_subdirectories(tmp_path):
    runs = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "sweep" / "part" / "b"),
        make_run(tmp_path / "sweep" / "c"),
    ]
    make_run(tmp_path / "a" / "within a run")
    make_run(tmp_path / ".hidden" / "run")
    make_run(tmp_path / "1" / "2" / "3" / "4" / "too deep")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "z").symlink_to(runs[0])
    assert sorted(find_runs(tmp_path)) == sorted(runs)
    assert find_runs(runs[0]) == [runs[0]]
    with pytest.raises(RunDirectoryError, match="which does not exist"):
        find_runs(tmp_path / "nowhere")


def test_unreadable_directories_are_skipped(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refuse(path):
        if path == tmp_path / "locked":
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert find_runs(tmp_path) == [run]
