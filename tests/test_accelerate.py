"""The stages of `python -m bench accelerate`, with short jobs, and their tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bench import storage
from bench.accelerate import check, jobs, stages, tables, trainings
from bench.accelerate.rows import ROWS
from bench.accelerate.runner import Job, Runner, read_lines
from bench.accelerate.updates import make_batch, make_updates

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent

FIGURES = "print('figures: {\"x\": 1}', flush=True)"
HANG = "import time\ndef wait_forever():\n    time.sleep(600)\nwait_forever()"
ABORT = "import os\ndef crash():\n    os.abort()\ncrash()"


def job(name: str, code: str, limit_s: float = 30.0, **more) -> Job:
    return Job(name, [sys.executable, "-c", code], limit_s, least_s=0.0, **more)


def ends(pid: int) -> bool:
    """Return whether a process is gone, within a minute."""
    for _ in range(1200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def run(out: Path, jobs: list[Job], deadline_s: float = 60.0, side_by_side: int = 4) -> list[dict]:
    runner = Runner(out, time.monotonic() + deadline_s, side_by_side=side_by_side)
    runner.run(jobs)
    assert read_lines(out) == runner.lines
    return sorted(runner.lines, key=lambda line: line["name"])


def test_a_job_that_hangs_or_crashes_leaves_its_line_and_the_others_run(tmp_path):
    lines = run(
        tmp_path,
        [
            job("a hangs", HANG, limit_s=4.0),
            job("b aborts", ABORT),
            job("c fails", "raise ValueError('no memory')"),
            job("d prints nothing", "pass"),
            job("e is missing", 'print(\'figures: {"missing": "no simulator"}\')'),
            job("f is right", FIGURES),
        ],
    )
    statuses = [line["status"] for line in lines]
    assert statuses == ["timeout", "failed", "failed", "failed", "skipped", "ok"]
    assert lines[-1]["figures"] == {"x": 1}
    assert "no simulator" in lines[4]["error"]
    assert "it printed no figures" in lines[3]["error"]
    assert "no memory" in lines[2]["error"]
    assert "SIGABRT" in lines[1]["error"]
    assert lines[0]["error"].endswith("\nnot finished after 4 s")
    assert "in wait_forever" in lines[0]["error"]
    # The logs contain the stacks.
    logs = (tmp_path / "logs.txt").read_text()
    assert "in wait_forever" in logs
    assert "in crash" in logs
    assert {path.name for path in tmp_path.iterdir()} == {"results.jsonl", "logs.txt"}


def test_children_of_a_job_end_with_it(tmp_path):
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('figures: {\"pid\": %d}' % child.pid, flush=True)\n"
    )
    (finished, hung) = run(tmp_path, [job("a", code), job("b", code + "child.wait()", limit_s=5.0)])
    assert (finished["status"], hung["status"]) == ("ok", "timeout")
    for line in (finished, hung):
        assert ends(line["figures"]["pid"])


def test_the_deadline_ends_what_runs_and_skips_the_rest(tmp_path):
    jobs = [job(name, HANG, limit_s=600.0) for name in "ab"]
    jobs.append(job("c", FIGURES, alone=True))
    began = time.monotonic()
    lines = run(tmp_path, jobs, deadline_s=6.0, side_by_side=2)
    assert [line["status"] for line in lines] == ["timeout", "timeout", "skipped"]
    assert "s remained" in lines[-1]["error"]
    assert time.monotonic() - began < 60  # and not 600


def test_a_job_that_measures_runs_alone(tmp_path):
    code = (
        "import os, sys, time\nfolder = sys.argv[1]\n"
        "mark = os.path.join(folder, str(os.getpid()))\n"
        "open(mark, 'w').close()\ntime.sleep(0.3)\nbeside = len(os.listdir(folder))\n"
        "os.remove(mark)\nprint('figures: {\"beside\": %d}' % beside)"
    )
    marks = tmp_path / "marks"
    marks.mkdir()
    jobs = [
        Job(name, [sys.executable, "-c", code, str(marks)], 30.0, alone, 0.0)
        for name, alone in (("a", False), ("b", True), ("c", True), ("d", False))
    ]
    lines = run(tmp_path / "out", jobs)
    assert [line["figures"]["beside"] for line in lines] == [1, 1, 1, 1]


def test_terminating_a_stage_ends_its_jobs(tmp_path):
    code = f"""
import sys, time
from pathlib import Path
from bench.accelerate.runner import Job, Runner
hang = "open('up', 'w').close(); import time; time.sleep(600)"
jobs = [Job(name, [sys.executable, "-c", hang], 600.0) for name in "ab"]
Runner(Path({str(tmp_path)!r}), time.monotonic() + 600).run(jobs)
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path])),
    }
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM
    lines = read_lines(tmp_path)
    assert [line["status"] for line in lines] == ["failed", "skipped"]
    assert "stage was terminated" in lines[1]["error"]


def test_a_truncated_line_is_skipped(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"name": "a"}\n{"name": "b", "sta')
    assert read_lines(tmp_path) == [{"name": "a"}]


def test_starting_a_stage_needs_only_the_standard_library(tmp_path):
    """The interpreter can import no other library."""
    code = f"""
import sys
sys.path[:] = [{str(ROOT)!r}, *(path for path in sys.path if "site-packages" not in path)]
sys.argv = ["bench", "accelerate", "--stage", "measure", "--device", "cpu", "--only", "facts"]
sys.argv += ["--out", {str(tmp_path)!r}, "--deadline", "1"]
from bench.__main__ import main
sys.exit(main())
"""
    result = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env={}
    )
    assert result.returncode == 0, result.stderr
    assert read_lines(tmp_path)[0]["status"] == "skipped"
    assert "1 skipped" in (tmp_path / "table.txt").read_text()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_jobs_of_the_stages_are_complete(device):
    """Each job names a function of `work` and valid arguments, and no job is repeated."""
    import inspect

    for name in ("check", "measure"):
        stage_jobs = list(getattr(stages.Stage(device, 8.0), name)())
        assert len({job.name for job in stage_jobs}) == len(stage_jobs)
        for job in stage_jobs:
            arguments = json.loads(job.command[-1])
            function = jobs.KINDS[arguments.pop("kind")]
            if function is jobs.train:
                inspect.signature(trainings.train).bind(**arguments)
            else:
                inspect.signature(function).bind(**arguments)
    alone = [job.alone for job in stage_jobs]
    assert alone == sorted(alone)  # jobs that compile side by side come first


def test_checks_pass_or_are_skipped_with_a_reason():
    results = check.run_group("dqn eager", CPU)
    assert (results["passed"], results["failed"]) == (2, 0)
    with pytest.raises(check.Missing, match="no CUDA device"):
        check.run_group("dqn cudagraph", CPU)


def test_a_diverging_update_fails(monkeypatch):
    from hotloop.learner.execution import Execution

    run_update = Execution.__call__

    def astray(self, state, *args):
        outputs = run_update(self, state, *args)
        if self.choice.is_compiled:
            state[0].params[0] += 0.5
        return outputs

    def eager(self, state, args):
        return self._update(state, *args)

    monkeypatch.setattr(Execution, "_run", eager)
    assert "20 updates, largest relative distance 0.0e+00" in check.check_updates(
        "dqn", "compile", CPU
    )
    monkeypatch.setattr(Execution, "__call__", astray)
    results = check.run_group("dqn compile", CPU)
    assert results["failed"] == 1
    assert "`params` has" in results["checks"]["updates"]


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_an_update_alone_learns(name):
    updates = make_updates(ROWS[name], "eager", CPU)
    before = getattr(
        updates.learner.state, "policy" if name in ("sac", "td3") else "params"
    ).clone()
    updates.make(4)
    after = getattr(updates.learner.state, "policy" if name in ("sac", "td3") else "params")
    assert not torch.equal(before, after)
    assert updates.learner.non_finite() == []
    assert len(updates.batch.obs) == updates.batch_size


def test_batches_are_of_the_environments_shapes():
    batch = make_batch(ROWS["ppo-atari"], 3, CPU)
    assert batch.obs.shape == (3, 4, 84, 84)
    assert batch.obs.dtype == torch.uint8
    again = make_batch(ROWS["ppo-atari"], 3, CPU)
    assert torch.equal(batch.obs, again.obs)


@pytest.mark.parametrize("name", ROWS)
def test_options_are_those_of_the_algorithm(name):
    import importlib

    row = ROWS[name]
    algorithm = importlib.import_module(f"hotloop.algorithms.{row.algorithm}").algorithm
    algorithm.config(env_id=row.env_id, **row.options)


STORED = {
    "device": {"name": "A GPU", "cuda": "12.8"},
    "table": {
        "sac": {
            "modes": {
                "eager": {"steps_per_s": 130.4, "busy": 0.12, "launches": 310.0, "kernels": 309.0},
                "compile": {"missing": "no compiler"},
                "cudagraph": {"steps_per_s": 700.0, "busy": None, "launches": None},
                "compile+cudagraph": {
                    "steps_per_s": 1304.0, "busy": 0.7, "launches": 2.5,
                    "load": [[0.25, 60], [0.5, 80]],
                },
                "overlap": {"steps_per_s": 2000.0},
            }
        }
    },
    "floor": {
        "device": {
            "bytes_per_s": 2e12, "flop_per_s": 5e13, "launch_s": 5e-6, "replay_s": 4e-6,
            "in_graph_s": 1e-6,
        },
        "rows": {
            "sac": {"size_bytes": 6e6, "flop": 6e8, "modes": {"eager": {"s": 1.5e-3}}},
            "dqn": {"size_bytes": 1e6, "flop": 1e6, "modes": {"eager": {"missing": "x"}}},
        },
    },
    "seeds": {"16": {"steps_per_s": 11736.0}},
    "copies": {"CartPole × 256": {"missing": "x"}, "CartPole × 1,024": {"steps_per_s": 5.0e5}},
}  # fmt: skip


def rows_of(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and "---" not in line
    ]


def test_tables_by_hand():
    _, sac, leanrl = rows_of(tables.speed_table(STORED))
    assert sac[:6] == ["SAC", "130", "–", "700", "1,304", "2,000"]
    assert sac[6:] == ["10.0×", "12% → 70%", "310 → 2"]
    assert leanrl[:5] == ["– LeanRL's README, one H100", "130", "255", "", "725"]
    # 70 % of the 7.67 s that 10,000 steps take.
    assert rows_of(tables.load_table(STORED))[1] == ["SAC, compile+cudagraph", "70%", "5.37 s"]
    # 6 MB take 3 µs and 600 MFLOP 12 µs. The launch dominates the other row.
    _, sac, dqn = rows_of(tables.floor_table(STORED))
    assert sac[1:7] == ["1,500", "–", "–", "–", "12.0", "6.00 MB"]
    assert dqn[5] == "4.0"
    assert rows_of(tables.seeds_table(STORED))[1:] == [
        ["1", "1,304", "1.00×"], ["16", "11,736", "9.0×"],
    ]  # fmt: skip
    assert rows_of(tables.copies_table(STORED))[1:] == [
        ["CartPole × 256", "–", "–"], ["CartPole × 1,024", "500,000", "–"],
    ]  # fmt: skip


def line(name: str, place: list[str], figures: dict, status: str = "ok", error: str = "") -> dict:
    return {"name": name, "status": status, "figures": figures, "error": error, "place": place}


def test_results_of_a_stage_are_collected_by_the_gpus_name(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "RESULTS", tmp_path / "results")
    facts = {"machine": {"cores": 16}, "device": {"name": "NVIDIA H100 80GB", "cuda": "13.0"}}
    sac = ["table", "sac", "modes"]
    for number, lines in enumerate(
        (
            [
                line("facts", [], facts),
                line("sac eager", [*sac, "eager"], {"steps_per_s": 1.0, "load": [[0.2, 5]]}),
                line("16 seeds", ["seeds", "16"], {}, "failed", "Traceback\nError: no memory"),
            ],
            [
                line("facts", [], facts),
                line("compile sac", [], {"steps_per_s": 7.0}),
                line("sac graph", [*sac, "cudagraph"], {"steps_per_s": 3.0}),
                line("td3 eager", ["table", "td3", "modes", "eager"], {}, "skipped", "0 s left"),
                line("sac eager", [*sac, "eager"], {"steps_per_s": 2.0}),
            ],
        )
    ):
        out = tmp_path / str(number)
        out.mkdir()
        (out / "results.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in lines))
        path = stages.collect(out)
    assert path.name == "accelerate_NVIDIA-H100-80GB.json"
    stored = json.loads(path.read_text())
    assert stored["machine"] == {"cores": 16}
    # The second run replaces its rows and keeps the others.
    modes = stored["table"]["sac"]["modes"]
    assert modes == {"eager": {"steps_per_s": 2.0}, "cudagraph": {"steps_per_s": 3.0}}
    assert stored["seeds"] == {"16": {"missing": "Error: no memory"}}
    assert list(stored["table"]) == ["sac"]
    (tmp_path / "0" / "results.jsonl").write_text("")
    with pytest.raises(SystemExit, match="no facts"):
        stages.collect(tmp_path / "0")


def test_the_page_has_tables_of_gpus_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "RESULTS", tmp_path)
    assert tables.page_table("seeds") == ""
    for name, stored in (("A-GPU", STORED), ("cpu", {**STORED, "device": {"name": "CPU"}})):
        (tmp_path / f"accelerate_{name}.json").write_text(json.dumps(stored))
    assert tables.page_table("seeds").startswith("A GPU:\n\n| vectorized seeds of SAC")
    assert tables.page_table("seeds").count("vectorized") == 1
