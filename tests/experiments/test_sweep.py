"""Sweeps from the command line: finished, killed, resumed and reported."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotloop.cli import main
from hotloop.errors import install_command
from hotloop.experiments import Results
from hotloop.experiments.pool import PoolExecutor, PoolProcess

TINY = ["--env-id", "CartPole-v1", "--total-timesteps", "256", "--execution", "eager"]
TINY += ["--num-steps", "16", "--num-envs", "4", "--hidden-sizes", "8", "--checkpoint-interval"]
TINY += ["100000000", "--torch-threads", "1", "--update-epochs", "1"]


def sweep(path, *args, code=0):
    if not {"--jobs", "--jobs=1", "ray"}.intersection(args):
        args += ("--jobs", "1")
    exit_code = main(["sweep", "ppo", *TINY, "--file", str(path), *args])
    assert exit_code == code


def table(path):
    """Return the parameters and the results of all runs, without times."""
    results = Results(path)
    params = {record.number: record.params for record in results.trials()}
    outcomes = {
        (record.trial, record.seed): (record.state, record.score, record.curve)
        for record in results.runs()
    }
    results.close()
    return params, outcomes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "one.sqlite"


@pytest.mark.usefixtures("cold_pool")
def test_a_grid_over_two_options_and_seeds(path, capsys):
    options = ("--sampler", "grid", "--seeds=1-2", "--jobs=1", "--total-timesteps=128")
    sweep(path, "learning_rate=log:1e-4,1e-2,2", "gae_lambda=0.9,1", *options)
    out = capsys.readouterr().out
    assert "4 trials: 4 done, 0 pruned, 0 failed" in out
    params, runs = table(path)
    assert list(params.values()) == [
        {"learning_rate": rate, "gae_lambda": gae} for rate in (1e-4, 1e-2) for gae in (0.9, 1)
    ]
    assert len(runs) == 8
    assert all(state == "done" and len(curve) > 1 for state, _, curve in runs.values())


def test_values_alone_are_a_grid(path, capsys):
    args = "learning_rate=1e-3,1e-2", "gae_lambda=0.9,0.95", "--total-timesteps=64"
    sweep(path, *args)
    assert "the space has 4 points: a grid, with a trial for each" in capsys.readouterr().err
    points = [tuple(params.values()) for params in table(path)[0].values()]
    assert points == [(1e-3, 0.9), (1e-3, 0.95), (1e-2, 0.9), (1e-2, 0.95)]
    sweep(path, *args, "--trials", "2")  # the same sweep
    assert len(table(path)[1]) == 4


def test_files_that_differ_in_their_suffix_keep_their_runs(path, tmp_path, capsys):
    files = path, tmp_path / "one.db", tmp_path / "nosuffix"
    for rate, file in enumerate(files, 1):
        sweep(file, f"learning_rate={rate}e-3", "--total-timesteps=64", "--num-steps=16")
    for rate, file in enumerate(files, 1):
        results = Results(file)
        (run,) = results.runs()
        results.close()
        config = json.loads((Path(run.directory) / "config.json").read_text())["config"]
        assert config["learning_rate"] == rate / 1000
        assert main(["sweep", "report", str(file)]) == 0
    assert len({line for line in capsys.readouterr().out.split("\n") if "page: " in line}) == 3


def test_a_path_with_bytes_that_are_no_utf_8(tmp_path):
    directory = tmp_path / os.fsdecode(b"caf\xe9")
    sweep(directory / "one.sqlite", "learning_rate=1e-3", "--total-timesteps=64")
    assert main(["sweep", "report", str(directory / "one.sqlite")]) == 0
    assert (directory / "one" / "trial_0001__seed_1__64" / "config.json").exists()


def test_the_same_sweep_in_lanes_and_processes(path, tmp_path):
    args = ("learning_rate=log:1e-4,1e-2", "--trials", "2", "--seeds", "1-2")
    sweep(path, *args, "--jobs", "1")
    sweep(tmp_path / "two.sqlite", *args, "--jobs", "2")
    sweep(tmp_path / "lanes.sqlite", *args, "--jobs", "1", "--lanes", "4")
    assert table(path) == table(tmp_path / "two.sqlite")
    params, runs = table(tmp_path / "lanes.sqlite")
    assert params == table(path)[0]
    assert {state for state, _, _ in runs.values()} == {"done"}
    assert len(runs) == 4


def test_auto_lanes_measures_both_ways(path, monkeypatch):
    from hotloop.experiments.pool import PoolExecutor

    unit_counts, start = [], PoolExecutor._start

    def note(self, process, units):
        has_more = start(self, process, units)
        unit_counts.append(len(process.work or []))
        return has_more

    monkeypatch.setattr(PoolExecutor, "_start", note)
    sweep(path, "learning_rate=log:1e-4,1e-2", "--trials=14", "--jobs=1", "--lanes", "auto")
    # The first run of a process is not measured. Two single runs and two batches of four follow.
    assert unit_counts[:5] == [1, 1, 1, 4, 4]
    assert len(table(path)[1]) == 14


def test_extending_by_trials_seeds_and_steps_repeats_nothing(path, capsys):
    args = ("learning_rate=log:1e-4,1e-2", "--trials", "2")
    sweep(path, *args)
    before = table(path)[1]
    assert main(["sweep", "resume", str(path), "--trials", "3", "--seeds", "1-2"]) == 0
    after = table(path)[1]
    assert len(after) == 6
    assert {key: after[key] for key in before} == before
    capsys.readouterr()
    assert main(["sweep", "resume", str(path), "--total-timesteps", "512"]) == 0
    results = Results(path)
    assert {run.steps for run in results.runs()} == {256, 512}
    assert len(results.runs()) == 12
    results.close()


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes"])
def test_optunas_samplers(name, path):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    sweep(
        path, "learning_rate=log:1e-4,1e-2", "gae_lambda=lin:0.8,1", "--sampler", name, "--trials=3"
    )
    first = table(path)[0]
    assert len({json.dumps(params) for params in first.values()}) == 3
    assert main(["sweep", "resume", str(path), "--trials", "4"]) == 0
    assert len(table(path)[0]) == 4


def test_failed_trials_are_stored_with_their_reason(path, capsys, monkeypatch):
    # 3 minibatches don't divide 64 transitions; an environment raises.
    sweep(path, "num_minibatches=3,4", "--sampler", "grid", code=1)
    output = capsys.readouterr()
    assert "1 done, 0 pruned, 1 failed" in output.out
    assert "trial 1/2 · num_minibatches 3 · failed with seed 1\n" in output.out
    assert "trial 1 failed with seed 1: " in output.err
    assert "num_minibatches" in output.err
    other = path.with_name("two.sqlite")
    env = ["--env-id", "tests.toy_envs:Misbehaves", "--env-kwargs", '{"how": "raises", "at": 9}']
    args = [*env, "--file", str(other), "gae_lambda=0.9,1", "--sampler=grid"]
    assert main(["sweep", "ppo", *TINY, *args]) == 1
    assert "trial 2 failed with seed 1: " in capsys.readouterr().err
    assert main(["sweep", "resume", str(other)]) == 1  # failed trials are not retried


def test_a_killed_process_is_replaced_and_its_run_repeated(path, monkeypatch, capsys):
    from hotloop.experiments.pool import PoolExecutor

    hear, killed = PoolExecutor._handle_messages, []

    def kill_once(self, process, messages):
        if messages is not None and not killed:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        hear(self, process, messages)

    monkeypatch.setattr(PoolExecutor, "_handle_messages", kill_once)
    args = ("learning_rate=log:1e-4,1e-2", "--trials", "2", "--jobs", "1")
    sweep(path, *args)
    monkeypatch.undo()
    sweep(path.with_name("whole.sqlite"), *args)
    assert killed
    assert table(path) == table(path.with_name("whole.sqlite"))


def test_lanes_of_a_killed_process_are_repeated_together(path, monkeypatch):
    from hotloop.experiments.pool import PoolExecutor

    handle, send, sizes = PoolExecutor._handle_messages, PoolExecutor._send, []

    def kill_once(self, process, messages):
        if messages is not None and len(sizes) == 1:
            os.kill(process.pid, signal.SIGKILL)
            messages = []
        handle(self, process, messages)

    def count(self, process, specs, configs):
        sizes.append(len(specs))
        send(self, process, specs, configs)

    args = ("learning_rate=log:1e-4,1e-2", "--trials", "4", "--jobs", "1", "--lanes", "4")
    sweep(path.with_name("whole.sqlite"), *args)
    monkeypatch.setattr(PoolExecutor, "_handle_messages", kill_once)
    monkeypatch.setattr(PoolExecutor, "_send", count)
    sweep(path, *args)
    assert sizes == [4, 4]
    assert table(path) == table(path.with_name("whole.sqlite"))


def test_a_lane_that_kills_its_process_does_not_fail_the_others(path, capsys):
    """Lanes that die twice are trained alone."""
    env = ["--env-id", "tests.experiments.crashing_env:CrashesWithSeed", "--seeds", "1-3"]
    args = ["sweep", "ppo", *TINY, *env, "gamma=0.9", "--lanes", "3", "--jobs", "1"]
    assert main([*args, "--file", str(path)]) == 1
    states = {seed: state for (_, seed), (state, _, _) in table(path)[1].items()}
    assert states == {1: "done", 2: "failed", 3: "done"}
    assert "its process ended by SIGKILL; out of memory?" in capsys.readouterr().err


def test_processes_get_the_number_of_runs_per_compiled_update(path, monkeypatch):
    num_runs, send = [], PoolProcess._send

    def record_and_send(self, message):
        num_runs.append(message.get("runs"))
        send(self, message)

    monkeypatch.setattr(PoolProcess, "_send", record_and_send)
    options = ("learning_rate=1e-3,1e-2", "num_minibatches=1,2", "--sampler", "grid")
    sweep(path, *options, "--seeds", "1-3", "--jobs", "1")
    assert num_runs == [6] * 12
    # More seeds do not change the other runs.
    assert main(["sweep", "resume", str(path), "--seeds", "1-4", "--jobs", "1"]) == 0
    assert num_runs == [6] * 16


def test_pruned_runs_are_stopped_early(path):
    args = ("learning_rate=1e-12,1e-3,3e-3,1e-2,2e-2,3e-2", "--sampler", "grid", "--jobs", "1")
    sweep(path, *args, "--pruner", "median", "--total-timesteps", "1024")
    results = Results(path)
    runs = results.runs()
    results.close()
    stopped = [run for run in runs if run.state == "pruned"]
    assert stopped
    assert all("below the median" in run.reason for run in stopped)
    assert all(run.curve[-1][0] < 1024 for run in stopped)
    assert any(run.state == "done" for run in runs)


# --- the report ----------------------------------------------------------------------------------


@pytest.mark.outside  # a browser
def test_the_report_tests_saves_and_plots_the_best_trial(path, capsys, tmp_path, request):
    sweep(
        path, "learning_rate=1e-12,3e-2", "gae_lambda=0.9,1", "--sampler", "grid", "--seeds", "1-2"
    )
    capsys.readouterr()
    parquet = tmp_path / "runs.parquet"
    command = ["sweep", "report", str(path), "--test-seeds", "11-13", "--parquet", str(parquet)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "on 3 fresh seeds: " in out
    assert "the defaults: " in out
    assert "difference: " in out
    directory = tmp_path / "one_report"
    for name in ("slices", "parallel", "curves"):
        assert (directory / f"{name}.png").stat().st_size > 2_000
    assert parquet.stat().st_size > 0
    preset = directory / "best.toml"
    trained = ["train", "ppo", "--config", str(preset), "--run-dir", str(tmp_path / "run")]
    assert main(trained) == 0
    assert main(["sweep", "report", str(path), "--test-seeds", "2-4"]) != 0
    assert "must be fresh, but trials used 2" in capsys.readouterr().err
    page = (directory / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    chromium = request.getfixturevalue("chromium")  # the other checks need no browser
    chromium.open(directory / "report.html")
    widths = chromium.evaluate("[...document.images].map(x => x.naturalWidth)")
    assert len(widths) >= 3
    assert all(width > 300 for width in widths)
    assert chromium.evaluate("document.querySelectorAll('#trials tbody tr').length") == 4
    assert not chromium.problems


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["learning_rat=0.1", "--trials", "2"], "did you mean 'learning_rate'"),
        (["learning_rate=log:1e-4,1e-2"], "needs an end: pass `--trials` or `--hours`"),
        (["num_minibatches=int:1,1000000"], "needs an end: pass `--trials` or `--hours`"),
        (["learning_rate=log:1e-4,1e-2", "--trials", "0"], "`--trials` must be a positive int"),
        (["learning_rate=0.1", "--sampler", "best", "--trials", "2"], "`--sampler` must be grid"),
        (["gamma=0.1", "--gamma", "1", "--trials", "2"], "has a space and a fixed value"),
        ([], "needs options to sweep over, got none"),
        (["learning_rate", "--trials", "2"], "`learning_rate` needs a space: write its"),
        (["learning_rate=0.1", "--metric", "x", "--trials", "2"], "`--metric` must be return or"),
        (["learning_rate=0.1", "--lanes", "x", "--trials", "2"], "`--lanes` must be"),
        (["gamma=0.1", "--space", "no.toml", "--trials=2"], "`--space` must be a TOML file"),
        (["learning_rate=0.1", "--metric", "evaluation", "--trials=2"], "needs `--eval-interval`"),
        (
            ["learning_rate=log:1e-5,1e-2,1000", "gae_lambda=lin:0,1,1000", "--sampler", "grid"],
            "the grid has 1,000,000 points, and a sweep has at most 100,000",
        ),
        (["learning_rate=0.1", "--run-dir", "x", "--trials", "2"], "a sweep has no `--run-dir`"),
        (["learning_rate=0.1", "--runs-dir=x", "--trials", "2"], "`--runs-dir`: use `--file`, w"),
    ],
)
def test_bad_input(args, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "ppo", *TINY, *args]) != 0
    assert message in capsys.readouterr().err


def test_another_sweep_in_the_file_is_refused(path, capsys):
    sweep(path, "gae_lambda=0.9,1", "--sampler", "grid")
    sweep(path, "learning_rate=0.1,0.2", "--sampler", "grid", code=2)
    assert "has another sweep, of ppo over gae_lambda" in capsys.readouterr().err
    assert main(["sweep", "resume", str(path.with_name("no.sqlite"))]) != 0
    assert "does not exist: `hotloop sweep" in capsys.readouterr().err


def test_a_directory_is_the_sweep_whose_runs_it_has(path, tmp_path, capsys):
    sweep(path, "learning_rate=1e-3", "--total-timesteps=64")
    assert main(["sweep", "report", str(path.with_suffix(""))]) == 0
    assert f"1 done, 0 pruned, 0 failed; {path}" in capsys.readouterr().out
    assert main(["sweep", "report", str(tmp_path)]) == 2
    assert "is a directory without results of a sweep: pass the file" in capsys.readouterr().err


def test_a_sweep_may_complete_fixed_options(path, capsys):
    """`max_policy_age` is valid with one value of the space only."""
    space = ("schedule=barrier,async", "--max-policy-age", "2", "--workers", "1")
    args = ["appo", *TINY, *space, "--file", str(path), "--jobs", "1"]
    assert main(["sweep", *args]) == 1
    states = {trial: state for (trial, _), (state, _, _) in table(path)[1].items()}
    assert states == {1: "failed", 2: "done"}
    assert "`max_policy_age` 2 is for `schedule` 'async'" in capsys.readouterr().err


def test_without_optuna_the_extra_is_named(path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    sweep(path, "learning_rate=0.1,0.2", "--sampler", "tpe", "--trials", "2", code=1)
    assert install_command("sweep") in capsys.readouterr().err


@pytest.mark.parametrize("space", ['["unknown_module:make"]', '"1e-3,unknown_module:make"'])
def test_a_file_of_spaces_names_no_code(tmp_path, capsys, space):
    (tmp_path / "space.toml").write_text(f"learning_rate = {space}\n")
    command = ["sweep", "ppo", "--env-id", "CartPole-v1", "--space", str(tmp_path / "space.toml")]
    assert main([*command, "--file", str(tmp_path / "a.sqlite")]) == 2
    assert "`learning_rate` in " in (message := capsys.readouterr().err)
    assert "may name code, an address or a file: write its space on the command line" in message


def test_spaces_in_a_file(path, tmp_path):
    file = tmp_path / "space.toml"
    file.write_text('learning_rate = "log:1e-4,1e-2,2"\nhidden_sizes = [[8, 8], [4]]\n')
    options = [x for x in TINY if x not in ("--hidden-sizes", "8")]
    places = ["--space", str(file), "--file", str(path)]
    assert main(["sweep", "ppo", *options, *places, "--sampler", "grid"]) == 0
    assert [params["hidden_sizes"] for params in table(path)[0].values()] == [[8, 8], [4]] * 2


def test_a_run_that_ends_just_before_an_interrupt_is_stored():
    spec, events = SimpleNamespace(key=(1, 1, "tune")), []
    process = SimpleNamespace(
        work=[spec],
        pid=1,
        trained_lanes=set(),
        interrupt=lambda: events.append("interrupted"),
        exit_code=lambda: events.append("ended"),
    )
    received = iter([[{"done": [["done", 1.5, "", 2.0]]}], None])

    def wait(timeout_s):
        messages = next(received)
        if messages is None:
            pool.processes.remove(process)
        return [(process, messages)]

    pool, executor = SimpleNamespace(processes=[process], wait=wait), PoolExecutor(1, 1)
    executor._pool, executor._runner = pool, SimpleNamespace(finish=events.append)
    executor._interrupt_all()
    assert events == ["interrupted", [(spec, ("done", 1.5, "", 2.0))], "ended"]
