from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from hotloop import algorithms
from hotloop.errors import ConfigError, UnknownNameError
from hotloop.ops.schedules import cosine, linear
from hotloop.training.options import (
    FRACTION,
    MAY_CHANGE,
    POSITIVE,
    Count,
    Hint,
    NetworkOptions,
    NotNegative,
    OnPolicyOptions,
    Options,
    ReplayOptions,
    RunOptions,
    ScheduledFinite,
    ScheduledFraction,
    ScheduledPositive,
    Sizes,
    changeable_options,
    changed_fields,
    from_stored,
    to_json,
)


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyOptions, NetworkOptions, RunOptions):
    """Options of an on-policy algorithm."""

    total_timesteps: Count = 1000
    """Another default, without the group's mark."""
    learning_rate: ScheduledPositive = linear(1e-3, 0.0)
    """Adam's α."""
    target_entropy: ScheduledFinite | None = None
    """A target; None: none."""
    mixing: Annotated[float, POSITIVE, FRACTION] = 0.5
    """With two constraints."""
    kind: Annotated[Literal["a", "b", "c"], Hint("'d' is gone")] | None = None
    """With a hint."""
    depth: int = 1
    """A plain integer."""
    scale: float = math.inf
    """A plain number."""
    anything: Any = None
    """Any value."""


@dataclass(frozen=True, kw_only=True)
class OffPolicy(ReplayOptions, NetworkOptions, RunOptions):
    """Options of an off-policy algorithm."""

    hidden_sizes: Sizes = (256, 256)
    """Widths of the hidden layers."""
    tau: ScheduledFraction = 0.005
    """τ."""


def slower(progress):
    return 1e-3 * (1 - progress)


class Net:
    pass


@pytest.fixture
def known(monkeypatch):
    """Replace hotloop's algorithms by two, `on` and `off`."""
    classes = {"on": Config, "off": OffPolicy}

    @dataclass
    class Algorithm:
        config: type

    monkeypatch.setattr(algorithms, "ALGORITHMS", dict.fromkeys(classes, ""))
    monkeypatch.setattr(algorithms, "find", lambda name: Algorithm(classes[name]))


# --- groups --------------------------------------------------------------------------------------


def test_groups_are_flat_and_the_last_comes_first():
    names = [option.name for option in dataclasses.fields(Config)]
    places = ["env_id", "workers", "eval_interval", "run_dir", "network", "num_steps", "mixing"]
    assert sorted(places, key=names.index) == places
    assert Config().num_envs == 8
    assert OffPolicy().num_envs == 1  # of the first group


def test_derived_numbers():
    config = Config(num_steps=16, workers=3, envs_per_worker=2, num_minibatches=4, update_epochs=5)
    assert (config.total_envs, config.num_groups, config.has_workers) == (6, 3, True)
    assert (config.batch_size, config.minibatch_size) == (96, 24)
    assert config.num_updates == 11 * 5 * 4  # 1000 steps are 10.4 fragments
    assert Config(workers=2).total_envs == 8
    assert not Config(workers=2, backend="inline").has_workers
    assert (Config(workers="auto").num_groups, Config(workers="auto").has_workers) == (1, True)

    config = OffPolicy(total_timesteps=10_000, update_to_data=0.5, num_envs=3)
    assert (config.first_update_at, config.planned_updates) == (5000, 2500)
    assert config.random_steps() == 1667
    assert OffPolicy(learning_starts=0).first_update_at == 256


@pytest.mark.parametrize(
    ("options", "sampler"),
    [
        ({}, "Uniform(replacement=True)"),
        ({"replay": "proportional"}, "replacement=False"),
        ({"replay": "prioritized", "replay_alpha": 0.25}, "alpha=0.25"),
        ({"replay": "rank"}, "beta_samples=195000"),
    ],
)
def test_samplers(options, sampler):
    assert sampler in repr(OffPolicy(**options).sampler())


def test_every_check_is_called_once_base_first():
    calls = []

    @dataclass(frozen=True, kw_only=True)
    class Group(Options):
        def check(self):
            calls.append("group")

    @dataclass(frozen=True, kw_only=True)
    class Other(Options):
        pass

    @dataclass(frozen=True, kw_only=True)
    class Combined(Other, Group):
        def check(self):
            calls.append("combined")

    Combined()
    assert calls == ["group", "combined"]


def test_configurations_are_values():
    config = Config(hidden_sizes=[8], learning_rate="linear:0.001,0")
    assert copy.deepcopy(config) == config
    assert Config(learning_rate=linear(1e-3, 0)) == Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 2
    with pytest.raises(ConfigError, match="`seed` must be"):
        dataclasses.replace(config, seed=-1)


# --- bad values ----------------------------------------------------------------------------------

CENTRAL = {"inference": "central"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "`num_envs` must be a positive integer, got 0"),
        ({"num_envs": 2.5}, "`num_envs` must be a positive integer, got 2.5"),
        ({"num_envs": True}, "`num_envs` must be a positive integer, got True"),
        ({"num_envs": None}, "`num_envs` must be given, got None"),
        ({"total_timesteps": "100"}, "`total_timesteps` must be a positive integer, got '100'"),
        ({"seed": -1}, "`seed` must be an integer in [0, 2⁶³), got -1"),
        ({"seed": 2**63}, "`seed` must be an integer in [0, 2⁶³), got 9223372036854775808"),
        ({"env_kwargs": {"f": print}}, "`env_kwargs` must be a dict that JSON can hold"),
        ({"env_kwargs": {"f": (1,)}}, "`env_kwargs` must be a dict that JSON can hold"),
        ({"env_id": 3}, "`env_id` must be an id, or a class or function that makes the environm"),
        ({"normalize_obs": 1}, "`normalize_obs` must be True or False, got 1"),
        ({"depth": 1.5}, "`depth` must be an integer, got 1.5"),
        ({"scale": "1"}, "`scale` must be a number, got '1'"),
        ({"clip_obs": 0.0}, "`clip_obs` must be positive and finite or 'auto' or None, got 0.0"),
        ({"eval_interval": 0}, "`eval_interval` must be a positive integer or None, got 0"),
        ({"keep_checkpoints": -1}, "`keep_checkpoints` must be an integer ≥ 0, got -1"),
        ({"gpu_window_ms": 19, "device": "cuda"}, "`gpu_window_ms` must be 0 or between 20 and"),
        ({"gpu_window_ms": 250}, "`gpu_window_ms` 250 needs a GPU, got `device` 'cpu': set"),
        ({"workers": -1}, "`workers` must be an integer ≥ 0 or 'auto', got -1"),
        ({"workers": "many"}, "`workers` must be an integer ≥ 0 or 'auto', got 'many'"),
        ({"backend": "dask"}, "`backend` must be 'processes', 'inline' or 'ray', got 'dask'"),
        ({"backend": "ray"}, "`backend` 'ray' needs a number of `workers`, got 0: set it, such as"),
        ({"execution": "yes"}, "`execution` must be 'auto', 'eager', 'compile', 'cudagraph' or"),
        ({"hidden_sizes": (64, 0)}, "`hidden_sizes` must be positive integers, got (64, 0)"),
        ({"hidden_sizes": 64}, "`hidden_sizes` must be positive integers, got 64"),
        ({"track": ("neptune",)}, "'tensorboard', 'wandb', 'mlflow', 'trackio', got ('neptune'"),
        (
            {"track": "wandb"},
            "`track` must name trackers: 'tensorboard', 'wandb', 'mlflow', 'trackio', got 'wandb'",
        ),
        ({"run_dir": ""}, "`run_dir` must be the path of a new directory, got ''"),
        ({"device": "cuda:"}, "`device` must be 'auto', 'cpu', 'cuda' or one of 'cuda:0', "),
        ({"network": 3}, "`network` must be `module:name`, a class or a function, got 3"),
        ({"kind": "d"}, "`kind` must be 'a', 'b' or 'c', got 'd': 'd' is gone"),
        ({"mixing": 0.0}, "`mixing` must be positive and finite, got 0.0"),
        ({"mixing": 1.5}, "`mixing` must lie in [0, 1], got 1.5"),
        ({"eval_videos": True}, "`eval_videos` True needs `eval_interval`, got None: set"),
        ({"envs_per_worker": 2}, "`envs_per_worker` 2 needs `workers`, got 0: set `workers`"),
        ({"workers": "auto", "envs_per_worker": 2}, "`envs_per_worker` needs a number of `worke"),
        ({"inference": "central"}, "`inference` 'central' needs `workers`, got 0: set `workers`"),
        ({**CENTRAL, "workers": 2, "backend": "inline"}, "'processes' or 'ray', got 'inline': set"),
        ({**CENTRAL, "workers": "auto"}, "got 'auto', which assumes that each worker acts for its"),
        ({"num_envs": 1, "workers": 2}, "2 workers need at least 2 environments, got `num_envs`"),
        ({"workers": 3}, "divided evenly among 3 workers: set `num_envs` to a multiple of 3, or"),
        (
            {"num_minibatches": 3},
            "must divide num_envs × num_steps = 8 × 128 = 1024, got 3: 2 does",
        ),
        ({"workers": 2, "envs_per_worker": 3, "num_minibatches": 5}, "6 × 128 = 768, got 5: 4 do"),
        ({"schedule": "async"}, "got 'async': 'async' is for appo, and for algorithms that learn"),
        ({"schedule": "variable"}, "`schedule` 'variable' needs `workers`"),
        ({"overlap": True}, "`overlap` True needs `workers`, got 0: set `workers`"),
        ({"network": "nets:Net", "hidden_sizes": (8,)}, "`network` (nets:Net) is a custom network"),
        ({"network": Net, "activation": "relu"}, f"`network` ({__name__}:Net) is a custom"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ConfigError) as caught:
        Config(**options)
    assert message in str(caught.value)


def test_good_values():
    for options in (
        {"device": "cuda:12", "kind": None, "clip_obs": 5, "scale": 3, "track": ["wandb"]},
        {"kind": "a", "hidden_sizes": [], "anything": object()},
        {"network": Net},
        {"network": "nets:Net", "hidden_sizes": [64, 64]},
        {"schedule": "variable", "workers": 2, "overlap": True, "step_timeout_s": None},
    ):
        Config(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_starts": 1.5}, "`learning_starts` must be an integer ≥ 0, got 1.5"),
        ({"learning_starts": 200_000}, "is learned, got 200,000 of 200,000: lower `learning_start"),
        ({"buffer_size": 15}, "`buffer_size` must hold a batch, `batch_size` = 256, got 15: raise"),
        ({"update_to_data": 1e6}, "`update_to_data` must be at most 10,000, got 1000000.0"),
        ({"replay": None}, "`replay` must be given, got None"),
        ({"replay_alpha": 0.5}, "0.5 is for `replay` 'prioritized' or 'rank', got 'uni"),
        ({"replay": "rank", "replay_weight_from": "return_to_go"}, "'proportional', got 'rank': s"),
        ({"replay": "rank", "replay_beta": math.nan}, "`replay_beta` must be finite and not neg"),
        ({"replay": "proportional", "replay_shift": math.inf}, "`shift` must be 'min' or a finite"),
        ({"schedule": "variable"}, "got 'variable': 'variable' is for on-policy"),
        ({"schedule": "async"}, "`schedule` 'async' needs `workers`"),
        (
            {"schedule": "async", "workers": 2, "envs_per_worker": 8, "max_policy_age": 31},
            "`max_policy_age` = 31 is too low for 16 environments and 1 updates for each step",
        ),
        ({"gamma": 1.1}, "`gamma` must lie in [0, 1], got 1.1"),
        ({"gamma": "linear:0.9,0.99", "n_step": 3}, "constant if `n_step` is above 1, got linear:"),
    ],
)
def test_bad_values_of_replay(options, message):
    with pytest.raises(ConfigError) as caught:
        OffPolicy(**options)
    assert message in str(caught.value)


def test_constant_gamma_schedule_allows_n_step():
    assert OffPolicy(gamma="linear:0.9,0.9", n_step=3).n_step == 3
    assert OffPolicy(gamma="linear:0.9,0.99").n_step == 1


# --- schedules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [1e-3, 1, "0.001", "linear:1e-3,0", cosine(1e-3, 1e-4), slower, f"{__name__}:slower"]
)
def test_schedules_are_accepted_for_numbers(value):
    assert Config(learning_rate=value).learning_rate is value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": math.nan}, "`learning_rate` must be positive and finite, got nan"),
        ({"learning_rate": None}, "`learning_rate` must be given, got None"),
        ({"learning_rate": "0"}, "`learning_rate` must be positive and finite, got '0'"),
        ({"learning_rate": linear(1e-3, -1e-3)}, "and finite, got linear:0.001,-0.001"),
        ({"learning_rate": lambda progress: 0.5 - progress}, "positive and finite, got <function"),
        ({"learning_rate": "linaer:1,0"}, "got 'linaer:1,0'; did you mean 'linear'?"),
        ({"learning_rate": "linaer:1,0"}, "`learning_rate`: expected a number (0.001) or a sche"),
        ({"learning_rate": []}, "`learning_rate`: expected a number (0.001) or a schedule: "),
        ({"gamma": "piecewise:0=0.9,0.5=1.1"}, "`gamma` must lie in [0, 1], got 'piecewise:0=0.9"),
        ({"target_entropy": math.nan}, "`target_entropy` must be a finite number, got nan"),
        ({"mixing": "linear:1,0"}, "`mixing` must be positive and finite, got 'linear:1,0'"),
    ],
)
def test_bad_schedules(options, message):
    with pytest.raises(ConfigError) as caught:
        Config(**options)
    assert message in str(caught.value)


def test_missing_schedule_is_refused():
    with pytest.raises(UnknownNameError, match="`learning_rate`: schedule 'no_such:f': there is"):
        Config(learning_rate="no_such:f")


def test_numbers_of_numpy_are_stored_as_plain_numbers():
    from hotloop.algorithms import ppo

    plain = {"seed": 5, "total_timesteps": 1_000, "gamma": 0.5, "learning_rate": 0.25}
    plain |= {"normalize_obs": True, "hidden_sizes": (8, 8), "env_id": "CartPole-v1"}
    kinds = [np.int64, np.uint32, np.float64, np.float32, np.bool_, tuple, np.str_]
    options = {name: kind(plain[name]) for name, kind in zip(plain, kinds, strict=True)}
    options |= {"hidden_sizes": (np.int16(8), 8)}
    config = ppo.Config(
        **options, env_kwargs={"a": np.float64(1.5), "b": [np.int8(2), {"c": np.bool_(False)}]}
    )
    expected = ppo.Config(**plain, env_kwargs={"a": 1.5, "b": [2, {"c": False}]})
    assert repr(config) == repr(expected)
    assert to_json(config) == to_json(expected)
    with pytest.raises(ConfigError, match=r"`seed` must be an integer in \[0, 2⁶³\), got -1$"):
        ppo.Config(seed=np.int64(-1))
    with pytest.raises(ConfigError, match=r"`num_steps` must be a positive integer, got 8\.5"):
        ppo.Config(num_steps=np.float64(8.5))


def test_paths_are_stored_as_text(tmp_path):
    config = algorithms.find("ppo").config(run_dir=tmp_path / "a", runs_dir=tmp_path)
    assert (config.run_dir, config.runs_dir) == (str(tmp_path / "a"), str(tmp_path))
    with pytest.raises(ConfigError, match="`num_envs` must be"):
        algorithms.find("ppo").config(num_envs=tmp_path)


# --- unknown names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config_class", "name", "message"),
    [
        (Config, "learning_rat", "not an option of test_options; did you mean 'learning_"),
        (Config, "tau", "`tau` is not an option of test_options; off has it"),
        (OffPolicy, "num_step", "did you mean 'n_step'"),
        (Config, "xyzzy", "; `--help` lists its options"),
    ],
)
def test_unknown_options(known, config_class, name, message):
    with pytest.raises(UnknownNameError) as caught:
        config_class(**{name: 1})
    assert message in str(caught.value)
    with pytest.raises(UnknownNameError):
        dataclasses.replace(config_class(), **{name: 1})


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        Config("CartPole-v1")


# --- stored --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hidden_sizes": (8, 8), "track": ("wandb",), "env_kwargs": {"g": [1, 2]}},
        {"learning_rate": "cosine:0.001,0", "target_entropy": -2.0},
        {"learning_rate": f"{__name__}:slower"},
        {"network": "nets:Net"},
    ],
)
def test_stored_options_make_the_same_config(options):
    stored = json.loads(json.dumps(to_json(Config(**options))))
    again = from_stored(Config, stored)
    assert to_json(again) == stored
    assert changed_fields(again, stored) == []
    if "learning_rate" not in options:
        assert again == Config(**options)


def test_how_values_are_stored():
    stored = to_json(Config(learning_rate="linear:3e-4,0.0", gamma="0.9", network=Net))
    assert stored["learning_rate"] == "linear:0.0003,0"
    assert stored["gamma"] == 0.9
    assert stored["hidden_sizes"] == [64, 64]
    assert stored["network"] == f"{__name__}:Net"
    assert "<" in to_json(Config(network=functools.partial(Net)))["network"]
    assert to_json(Config(learning_rate=slower))["learning_rate"] == f"{__name__}:slower"


def test_options_of_another_version_are_refused():
    stored = {**to_json(Config()), "zeta": 1, "eta": 2}
    with pytest.raises(
        ConfigError,
        match=r"unknown to this version of hotloop \(eta, zeta\): resume with the version",
    ):
        from_stored(Config, stored)
    with pytest.raises(ConfigError, match="`learning_rate`: expected"):
        from_stored(Config, {**to_json(Config()), "learning_rate": "linear"})


def test_changed_fields_leaves_out_changeable_options():
    stored = to_json(Config())
    new = Config(
        total_timesteps=9999,
        run_dir="elsewhere",
        track=("wandb",),
        eval_interval=7,
        checkpoint_interval=8,
        backend="inline",
        device="cuda",
    )
    assert changed_fields(new, stored) == []
    other = Config(seed=2, hidden_sizes=(9,), learning_rate=1e-3, total_timesteps=5)
    assert changed_fields(other, stored) == [
        "seed: 1 → 2",
        "hidden_sizes: [64, 64] → [9]",
        "learning_rate: linear:0.001,0 → 0.001",
    ]
    assert changed_fields(Config(learning_rate="linear:1e-3,0"), stored) == []
    del stored["seed"]  # an option that is newer than the run had its default's effect
    assert changed_fields(Config(), stored) == []
    assert changed_fields(Config(seed=2), stored) == ["seed: 1 → 2"]


def test_changeable_options():
    shared = {
        *("total_timesteps", "runs_dir", "run_dir", "track", "log_info", "device"),
        *("checkpoint_interval", "keep_checkpoints", "gpu_window_ms"),
        *("eval_interval", "eval_episodes", "eval_max_steps", "eval_timeout_s", "eval_videos"),
        *("backend", "inference", "step_timeout_s", "max_failures"),
        *("ray_address", "worker_resources", "workers_per_node", "ray_runtime_env"),
        *("inference_actors", "inference_resources"),
        *("stop_at_return", "stop_without_improvement", "stop_after_hours", "stop_on_file"),
    }
    assert changeable_options(Config) == shared
    extra = {"save_replay", "replay_device", "updates_per_launch", "report_interval"}
    assert changeable_options(OffPolicy) == shared | extra


def test_custom_option_may_be_changeable():
    @dataclass(frozen=True, kw_only=True)
    class CustomOptions(RunOptions):
        verbosity: Annotated[NotNegative | None, MAY_CHANGE] = 0.0
        names: dict[str, int] = field(default_factory=dict)

    assert {"verbosity", "seed"} & changeable_options(CustomOptions) == {"verbosity"}
    with pytest.raises(ConfigError, match="`verbosity` must be finite and not negative, got -1"):
        CustomOptions(verbosity=-1)


OLD_EXECUTIONS = [("auto", "auto"), ("on", "compile"), ("off", "eager")]


@pytest.mark.parametrize(("compile", "execution"), OLD_EXECUTIONS)
def test_stored_option_compile_is_read(compile, execution):
    """`execution` was called `compile` before. The old name is read, and may not change either."""
    stored = to_json(Config())
    del stored["execution"]
    stored["compile"] = compile
    config = from_stored(Config, stored)
    assert config.execution == execution
    assert changed_fields(config, stored) == []
    other = "compile" if execution == "eager" else "eager"
    changed = changed_fields(dataclasses.replace(config, execution=other), stored)
    assert changed == [f"execution: {execution} → {other}"]
    assert stored["compile"] == compile


def test_custom_option_may_be_called_compile():
    @dataclass(frozen=True, kw_only=True)
    class CustomConfig(Config):
        compile: str = "never"

    stored = to_json(CustomConfig(compile="always", execution="eager"))
    again = from_stored(CustomConfig, stored)
    assert (again.compile, again.execution) == ("always", "eager")
    assert changed_fields(again, stored) == []
