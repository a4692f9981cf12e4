"""What `python -m bench accelerate` checks, reads and tells; its trainings are not run here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import storage
from bench.accelerate import check, tables, trainings
from bench.accelerate.rows import ROWS
from bench.accelerate.updates import make_batch, make_updates
from bench.measuring import Missing

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent


def test_checks_pass_or_are_skipped_with_a_reason(capsys):
    assert check.main(["--device", "cpu", "--no-compile", "--only", "dqn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5].strip() for line in lines[1:-1]] == ["PASS", "SKIP", "SKIP"]
    assert "no CUDA device" in lines[2]
    assert lines[-1] == "1 PASS, 0 FAIL, 2 SKIP"


def test_an_update_that_goes_astray_fails(capsys, monkeypatch):
    from hotloop.learner.execution import Execution

    make = check.__dict__["check_updates"]
    run = Execution.__call__

    def astray(self, state, *args):
        came = run(self, state, *args)
        if self.choice.is_compiled:
            state[0].params[0] += 0.5
        return came

    def eager(self, state, args):
        return self._update(state, *args)

    monkeypatch.setattr(Execution, "_run", eager)
    assert "20 updates, at most 0.0e+00" in make("dqn", "compile", CPU)
    monkeypatch.setattr(Execution, "__call__", astray)
    assert check.main(["--device", "cpu", "--only", "dqn: compile is"]) == 1
    assert "`params` is" in capsys.readouterr().out


def test_nothing_but_torch_and_numpy_is_needed():
    """In an interpreter where other libraries can't be found."""
    code = f"""
import sys
from importlib.machinery import PathFinder

hidden = {{"gymnasium", "tyro", "rich", "matplotlib", "safetensors", "threadpoolctl", "tomli_w"}}
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None
    if name.partition(".")[0] in hidden
    else find(name, path, target)
)
sys.argv = ["check", "--device", "cpu", "--no-compile", "--only", "td3: eager"]
sys.path.insert(0, {str(ROOT)!r})
from bench.accelerate import check
sys.exit(check.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PASS  td3: eager repeats" in done.stdout


def test_what_stands_in_for_a_library_is_not_called():
    one = check.StandIns()
    spec = one.find_spec("rich.console", None)
    assert spec is not None
    assert one.find_spec("numba", None) is None
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    one.exec_module(module)
    with pytest.raises(ModuleNotFoundError, match=r"rich\.console is not installed"):
        module.Console()


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


def leanrl(path: Path, text: str) -> Path:
    (path / "leanrl").mkdir(parents=True)
    (path / "leanrl" / "dqn_torchcompile.py").write_text(text)
    return path


def test_the_speed_that_a_script_of_leanrl_tells(tmp_path):
    """Its bar is redrawn by carriage returns; the first figures may be 0."""
    text = """
import sys, time
assert sys.argv[1:] == ["--seed", "21", "--compile", "--cudagraphs"], sys.argv
for speed in (0.0, 480.25, 512.5):
    print(f"\\rspeed: {speed: 4.1f} sps, return=3", end="", file=sys.stderr, flush=True)
time.sleep(60)
"""
    speed = trainings.leanrl(leanrl(tmp_path, text), ROWS["dqn"], "compile+cudagraph", 0.1)
    assert speed == 512.5


def test_a_script_of_leanrl_that_fails_is_missing(tmp_path):
    path = leanrl(tmp_path, "raise SystemExit('no module named wandb')")
    with pytest.raises(Missing, match="no module named wandb"):
        trainings.leanrl(path, ROWS["dqn"], "eager", 0.1)
    with pytest.raises(Missing, match="no sac_continuous_action_torchcompile"):
        trainings.leanrl(path, ROWS["sac"], "eager", 0.1)


STORED = {
    "device": {"name": "A GPU", "cuda": "12.8"},
    "table": {
        "sac": {
            "modes": {
                "eager": {"steps_per_s": 130.4, "busy": 0.12, "launches": 310.0, "kernels": 309.0},
                "compile": {"missing": "no compiler"},
                "cudagraph": {"steps_per_s": 700.0, "busy": None, "launches": None},
                "compile+cudagraph": {"steps_per_s": 1304.0, "busy": 0.7, "launches": 2.5},
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
    "learning": {
        "dqn": {
            "eager": [{"passed": [[100, 1.0, 10.0], [200, 2.0, 20.0], [400, 4.0, 40.0]]}],
            "cudagraph": [
                {"passed": [[200, 1.0, 22.0], [800, 4.0, 80.0]]},
                {"passed": [[200, 1.0, 24.0], [800, 4.0, 100.0]]},
                {"missing": "out of memory"},
            ],
        }
    },
    "seeds": {"1": {"steps_per_s": 1000.0}, "16": {"steps_per_s": 9000.0}},
    "copies": {"256": {"missing": "x"}, "1024": {"steps_per_s": 5.0e5}},
}  # fmt: skip


def rows_of(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and "---" not in line
    ]


def test_tables_by_hand():
    _, sac, theirs = rows_of(tables.speed_table(STORED))
    assert sac == ["SAC", "130", "–", "700", "1,304", "10.0×", "12% → 70%", "310 → 2"]
    assert theirs[:5] == ["– LeanRL's README, one H100", "130", "255", "", "725"]
    # 6 MB take 3 µs, 600 MFLOP 12; of the other a launch takes longest.
    _, sac, dqn = rows_of(tables.floor_table(STORED))
    assert sac[1:7] == ["1,500", "–", "–", "–", "12.0", "6.00 MB"]
    assert dqn[5] == "4.0"
    _, eager, graph = rows_of(tables.learning_table(STORED))
    # Of 400 steps and 4 s, which both have had.
    assert eager[2:] == ["1", *2 * ["10 (10–10)", "20 (20–20)", "40 (40–40)"]]
    by_steps = ["–", "23 (22–24)", "23 (22–24)"]
    assert graph[2:] == ["2", *by_steps, "23 (22–24)", "23 (22–24)", "90 (80–100)"]
    assert rows_of(tables.seeds_table(STORED))[2] == ["16", "9,000", "9.0×"]
    assert rows_of(tables.copies_table(STORED))[1:] == [
        ["256", "–", "–"], ["1,024", "500,000", "1.00×"],
    ]  # fmt: skip


def test_the_page_has_tables_of_gpus_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "RESULTS", tmp_path)
    assert tables.page_table("seeds") == ""
    for name, stored in (("A-GPU", STORED), ("cpu", {**STORED, "device": {"name": "CPU"}})):
        (tmp_path / f"accelerate_{name}.json").write_text(json.dumps(stored))
    assert tables.page_table("seeds").startswith("A GPU:\n\n| seeds of PPO")
    assert tables.page_table("seeds").count("at once") == 1
