"""`hotloop.sweep` and `hotloop.train_many`, and their tables."""

import json
import sys

import numpy as np
import pytest

import hotloop
from hotloop.errors import ConfigError, MissingExtraError, RunDirectoryError, UnknownNameError
from hotloop.experiments import ExperimentTable, Run, Trial, read_table
from hotloop.experiments import launch as launch_module

TINY = {"total_timesteps": 128, "num_steps": 16, "num_envs": 4, "hidden_sizes": (8,)}
TINY |= {"execution": "eager", "update_epochs": 1, "torch_threads": 1}


def run(trial, state="done", score=1.5, **changes):
    values = {"seed": 1, "steps": 100, "purpose": "tune", "reason": "", "seconds": 0.5}
    values |= {"curve": [(50, 1.0)], "directory": "d", **changes}
    return Run(trial=trial, state=state, score=score, **values)


def table_of(tmp_path, *params):
    trials = {k: Trial(k, options, {}) for k, options in enumerate(params)}
    return ExperimentTable(tmp_path, trials, [run(k) for k in trials])


def test_a_sweep_and_its_table(tmp_path):
    path, space = tmp_path / "one.sqlite", {"learning_rate": "log:1e-4,1e-2", "gamma": [0.9, 1]}
    arguments = {"trials": 2, "seeds": (1, 2), "jobs": 1, "file": path, **TINY}
    changes = []
    results = hotloop.sweep("ppo", space, "CartPole-v1", on_change=changes.append, **arguments)
    assert changes
    assert len(results) == 4
    columns = results.table()
    assert columns["trial"].tolist() == [1, 1, 2, 2]
    assert columns["seed"].tolist() == [1, 2, 1, 2]
    assert columns["state"].tolist() == ["done"] * 4
    assert columns["score"].dtype == columns["param.learning_rate"].dtype == np.float64
    assert np.isfinite(columns["score"]).all()
    assert columns["param.learning_rate"][0] == columns["param.learning_rate"][1]
    # The same call repeats nothing, and the command line reads the same file.
    again = hotloop.sweep("ppo", space, "CartPole-v1", **arguments)
    assert again == results
    assert read_table(path.with_suffix("")) == results
    with pytest.raises(ConfigError, match="has another sweep, of ppo over learning_rate, gamma"):
        hotloop.sweep("ppo", {"gamma": [0.8]}, "CartPole-v1", **arguments)


def test_several_seeds_and_values(tmp_path, capfd):
    arguments = {"vary": {"hidden_sizes": [(8, 8), (4,)]}, "run_dir": tmp_path / "it"}
    options = {name: x for name, x in TINY.items() if name != "hidden_sizes"} | {"jobs": 1}
    results = hotloop.train_many("ppo", "CartPole-v1", seeds=range(3, 5), **arguments, **options)
    columns = results.table()
    assert columns["param.hidden_sizes"].tolist() == [(8, 8), (8, 8), (4,), (4,)]
    assert columns["seed"].tolist() == [3, 4, 3, 4]
    assert (tmp_path / "it" / "hidden_sizes=8-8__seed_3" / "config.json").exists()
    assert "hidden_sizes 4, seed 4 | 128/128 steps" in capfd.readouterr().out
    with pytest.raises(RunDirectoryError, match="runs are never overwritten"):
        hotloop.train_many("ppo", "CartPole-v1", seeds=4, **arguments, **options)


@pytest.mark.parametrize(
    ("space", "options", "error", "message"),
    [
        ({"lerning_rate": [1]}, {}, UnknownNameError, "did you mean 'learning_rate'"),
        ({"gamma": [0.9, 1]}, {"lerning_rate": 1}, UnknownNameError, "learning_rate"),
        (
            {"gamma": [0.9, 1]},
            {"jobs": 0},
            ConfigError,
            "`--jobs` must be a positive number, got 0",
        ),
        ({"gamma": [0.9, 1]}, {"trials": "2"}, ConfigError, "`--trials` must be a positive num"),
        (
            {"gamma": [0.9, 1]},
            {"sampler_seed": -1},
            ConfigError,
            "must be from 0 to 2³¹ − 1, got -1",
        ),
        ({"gamma": [0.9, 1]}, {"seeds": "2-1"}, ConfigError, "from the smaller number"),
        ({"gamma": "log:0.9,1"}, {}, ConfigError, "needs an end"),
        ({"gamma": [0.9, 0.9]}, {}, ConfigError, "has a value twice"),
        ({}, {}, ConfigError, "needs options to sweep over, got none"),
        ({"gamma": [0.9, 1]}, {"policies": "a,b"}, ConfigError, "`policies` can't be combined"),
        ({"policies": ["a", "b"]}, {}, ConfigError, "`policies` can't be combined"),
    ],
)
def test_invalid_arguments_are_rejected_before_a_training(tmp_path, space, options, error, message):
    with pytest.raises(error, match=message):
        hotloop.sweep("ppo", space, "CartPole-v1", file=tmp_path / "one.sqlite", **options)
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": "a,b", "jobs": 1}, "`policies` can't be combined with several seeds"),
        ({"jobs": "two"}, "`--jobs` must be a positive number, got 'two'"),
        ({"jobs": 0}, "`--jobs` must be a positive number, got 0"),
        ({"jobs": 0, "lanes": True}, "`--jobs` must be a positive number, got 0"),
    ],
)
def test_invalid_groups_are_rejected_before_a_training(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        hotloop.train_many("ppo", "it", seeds=2, run_dir=tmp_path / "it", **options)
    assert not (tmp_path / "it").exists()


def test_unknown_scores_are_nan_and_columns_have_the_type_of_their_values(tmp_path):
    params = [{"a": 1, "b": 0.5, "c": "x"}, {"a": 2, "b": None, "c": "yy"}]
    trials = {k: Trial(k, options, {}) for k, options in enumerate(params)}
    runs = [run(0), run(1, state="failed", score=None, seconds=None, reason="NaN: it diverged")]
    columns = ExperimentTable(tmp_path, trials, runs).table()
    np.testing.assert_array_equal(columns["score"], [1.5, np.nan])
    np.testing.assert_array_equal(columns["seconds"], [0.5, np.nan])
    assert columns["reason"].tolist() == ["", "NaN: it diverged"]
    kinds = {name: column.dtype.kind for name, column in columns.items() if "param." in name}
    assert kinds == {"param.a": "i", "param.b": "O", "param.c": "U"}


def test_pandas_and_parquet(tmp_path):
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    results = table_of(tmp_path, {"sizes": [8, 8]}, {"sizes": [4]})
    frame = results.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["score"].tolist() == [1.5, 1.5]
    assert frame["param.sizes"].tolist() == [(8, 8), (4,)]
    results.to_parquet(tmp_path / "runs.parquet")
    rows = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert [json.loads(row["param.sizes"]) for row in rows] == [[8, 8], [4]]
    assert json.loads(rows[0]["curve"]) == [[50, 1.0]]


@pytest.mark.parametrize(
    ("module", "method", "args"), [("pandas", "to_pandas", ()), ("pyarrow", "to_parquet", ("x",))]
)
def test_a_missing_library_names_its_extra(tmp_path, monkeypatch, module, method, args):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match={"pyarrow": "parquet"}.get(module, module)):
        getattr(table_of(tmp_path, {}), method)(*args)


def test_the_default_paths(monkeypatch):
    assert str(launch_module.sweep_path("ALE/Pong-v5", "ppo")) == "sweeps/ALE-Pong-v5__ppo.sqlite"
