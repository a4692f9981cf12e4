"""Runs that train together in one process."""

import os
import signal
import threading

import numpy as np
import pytest

import hotloop
from hotloop import timing
from hotloop.algorithms import crossq, dqn, ppo, sac, sac_discrete, td3, tqc
from hotloop.errors import ConfigError, EnvironmentFailure, NonFiniteError
from hotloop.runs import RunDirectory
from hotloop.training import Callback
from hotloop.training.lanes import hyper_names, train_lanes

SHORT = {"torch_threads": 1, "execution": "eager"}
ON_POLICY = {"env_id": "CartPole-v1", "num_envs": 4, "num_steps": 32, "total_timesteps": 256}
ON_POLICY |= {"hidden_sizes": (16,), "update_epochs": 3}
OFF_POLICY = {
    "total_timesteps": 120,
    "learning_starts": 80,
    "batch_size": 16,
    "hidden_sizes": (16,),
    "report_interval": 20,
}
CASES = {
    "ppo": (ppo, ON_POLICY),
    "ppo, stopped by the KL": (ppo, {**ON_POLICY, "target_kl": 0.001, "normalize_obs": True}),
    "ppo, normalized value": (ppo, {**ON_POLICY, "normalize_value": True}),
    "ppo, a worker": (ppo, {**ON_POLICY, "workers": 1, "overlap": True}),
    "sac": (sac, {**OFF_POLICY, "env_id": "Pendulum-v1"}),
    "sac with a subset": (
        sac,
        {**OFF_POLICY, "env_id": "Pendulum-v1", "num_critics": 4, "target_critics": 2},
    ),
    "tqc": (tqc, {**OFF_POLICY, "env_id": "Pendulum-v1", "num_quantiles": 5}),
    "crossq": (
        crossq,
        {
            **OFF_POLICY,
            "env_id": "Pendulum-v1",
            "critic_hidden_sizes": (12,),
            "batch_norm_updates": 10,
            "policy_learning_rate": 3e-5,
            "critic_learning_rate": 3e-5,
        },
    ),
    "discrete sac": (sac_discrete, {**OFF_POLICY, "env_id": "CartPole-v1"}),
    "td3": (td3, {**OFF_POLICY, "env_id": "Pendulum-v1", "n_step": 3}),
    "dqn": (dqn, {**OFF_POLICY, "env_id": "CartPole-v1", "replay": "prioritized", "num_envs": 2}),
    "c51": (dqn, {**OFF_POLICY, "env_id": "CartPole-v1", "atoms": 5, "noisy_std": 0.5}),
}


def configs(module, options, tmp_path, seeds=(1, 2), **varied):
    """Return a configuration for each seed, or for each value of the varied option."""
    ((name, values),) = varied.items() or (("seed", seeds),)
    return [
        module.Config(**{**SHORT, **options, "run_dir": str(tmp_path / f"{name}_{x}"), name: x})
        for x in values
    ]


def arrays(path):
    """Return the arrays of a run's last checkpoint."""
    return RunDirectory.open(path).checkpoints.load().arrays()


@pytest.mark.parametrize("case", CASES)
def test_lanes_equal_single_runs(tmp_path, case):
    """Compare states, random numbers, returns and the metrics of each iteration."""
    module, options = CASES[case]
    results = train_lanes(module.algorithm, configs(module, options, tmp_path / "lanes"))
    for config, result in zip(configs(module, options, tmp_path / "one"), results, strict=True):
        single = module.train(config, progress=False)
        assert result.status == "finished"
        assert result.timesteps == single.timesteps
        lane_arrays, single_arrays = arrays(result.run_dir), arrays(single.run_dir)
        assert lane_arrays.keys() == single_arrays.keys()
        for name, x in single_arrays.items():
            np.testing.assert_allclose(lane_arrays[name], x, rtol=2e-3, atol=1e-5, err_msg=name)
        lines = [RunDirectory.open(x.run_dir).metrics() for x in (result, single)]
        for lane_line, single_line in zip(*lines, strict=True):
            assert lane_line["episode_returns"] == single_line["episode_returns"]
            assert lane_line.keys() == single_line.keys()
            assert lane_line["num_updates"] == single_line["num_updates"]


@pytest.mark.parametrize("n_step", [1, 3])
def test_gamma_varies_between_lanes(tmp_path, n_step):
    """Each lane learns with its own γ, as it does alone."""
    options = {**OFF_POLICY, "env_id": "Pendulum-v1", "n_step": n_step}
    lanes = train_lanes(sac.algorithm, configs(sac, options, tmp_path / "lanes", gamma=(0.0, 0.9)))
    singles = configs(sac, options, tmp_path / "one", gamma=(0.0, 0.9))
    for lane, config in zip(lanes, singles, strict=True):
        single = arrays(sac.train(config, progress=False).run_dir)
        lane_critics = arrays(lane.run_dir)["state.critics"]
        np.testing.assert_allclose(lane_critics, single["state.critics"], rtol=2e-3, atol=1e-5)
    first, second = (arrays(lane.run_dir)["state.critics"] for lane in lanes)
    assert np.abs(first - second).max() > 1e-3


def test_each_lane_has_its_own_directory(tmp_path):
    """It holds a checkpoint that loads, and the timing."""
    results = train_lanes(ppo.algorithm, configs(ppo, ON_POLICY, tmp_path, seeds=(1, 2)))
    assert "update of 2 lanes: eager" in results[0].execution
    for seed, result in zip((1, 2), results, strict=True):
        run = RunDirectory.open(result.run_dir)
        assert run.config["config"]["seed"] == seed
        assert hotloop.load(run.path).act(np.zeros(4, np.float32)) in (0, 1)
        (recording,), problems = timing.read_directory(run.path / "timing")
        assert not problems
        assert recording.tree().find("update").find("minibatch").count == 2 * 3 * 4
        run.lock()  # the lane has released it
        run.close()


def test_each_lane_has_its_own_callbacks(tmp_path):
    class StopSecond(Callback):
        def __init__(self, lane):
            self.lane, self.steps = lane, []

        def on_update(self, report):
            self.steps.append(report.timesteps)
            return "enough" if self.lane == 1 else None

    made = [StopSecond(0), StopSecond(1)]
    runs = configs(ppo, ON_POLICY, tmp_path)
    first, second = train_lanes(ppo.algorithm, runs, callbacks=lambda lane: [made[lane]])
    assert [callback.steps for callback in made] == [[128, 256], [128]]
    assert (first.status, second.status, second.stop_reason) == ("finished", "stopped", "enough")


def test_stopped_lane_resumes_as_a_single_run(tmp_path):
    stop = [lambda lane, report: report.timesteps >= 128, None]
    first = train_lanes(ppo.algorithm, configs(ppo, ON_POLICY, tmp_path), on_report=stop[0])
    assert [result.status for result in first] == ["stopped"] * 2
    config = configs(ppo, ON_POLICY, tmp_path)[1]
    result = ppo.train(config, resume_from=first[1].run_dir, progress=False)
    single = ppo.train(configs(ppo, ON_POLICY, tmp_path / "one")[1], progress=False)
    single_arrays = arrays(single.run_dir)
    np.testing.assert_allclose(
        arrays(result.run_dir)["state.params"], single_arrays["state.params"], rtol=2e-3, atol=1e-5
    )


@pytest.mark.parametrize(
    ("module", "options", "name"),
    [
        (ppo, ON_POLICY, "learning_rate"),
        (sac, {**OFF_POLICY, "env_id": "Pendulum-v1"}, "critic_learning_rate"),
    ],
)
def test_lane_with_nan_ends_and_the_others_continue(tmp_path, module, options, name):
    varied = {name: (1e-3, 1e30, 3e-4)}
    results = train_lanes(module.algorithm, configs(module, options, tmp_path, **varied))
    assert isinstance(results[1], NonFiniteError)
    assert "losses and parameters must be finite" in str(results[1])
    assert (tmp_path / f"{name}_1e+30" / "nonfinite_batch.safetensors").exists()
    for k, value in ((0, 1e-3), (2, 3e-4)):
        assert results[k].status == "finished"
        config = configs(module, options, tmp_path / "one", **{name: (value,)})[0]
        alone = arrays(module.train(config, progress=False).run_dir)
        for part, x in arrays(results[k].run_dir).items():
            np.testing.assert_allclose(x, alone[part], rtol=2e-3, atol=1e-5, err_msg=part)


def test_environment_failure_ends_only_its_lane(tmp_path):
    envs = []

    def env():
        import gymnasium

        class Breaks(gymnasium.Wrapper):
            number, steps = len(envs), 0

            def step(self, action):
                self.steps += 1
                if self.number == 4 and self.steps == 40:  # in the second lane
                    raise RuntimeError("a wheel came off")
                return self.env.step(action)

        envs.append(Breaks(gymnasium.make("CartPole-v1")))
        return envs[-1]

    results = train_lanes(ppo.algorithm, configs(ppo, ON_POLICY, tmp_path), env=env)
    assert isinstance(results[1], EnvironmentFailure)
    assert "a wheel came off" in str(results[1])
    assert results[0].status == "finished"


def test_signal_stops_and_saves_all_lanes(tmp_path):
    def on_report(lane, report):
        if lane == 1 and report.timesteps == 256:
            os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    lane_configs = configs(ppo, {**ON_POLICY, "total_timesteps": 512}, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_lanes(ppo.algorithm, lane_configs, on_report=on_report)
    for seed in (1, 2):
        run = RunDirectory.open(tmp_path / f"seed_{seed}")
        assert run.checkpoints.load().state["timesteps"] >= 128
        run.lock()
        run.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_hyper_names_lists_what_may_vary():
    assert "clip_range" in hyper_names(ppo.algorithm, ppo.Config())
    assert {"tau", "gamma"} <= set(hyper_names(sac.algorithm, sac.Config()))
    assert "hidden_sizes" not in hyper_names(dqn.algorithm, dqn.Config())


@pytest.mark.parametrize(
    ("module", "lane_options", "message"),
    [
        (ppo, [{"hidden_sizes": (8,)}, {}], r"can't differ in `hidden_sizes`: .* `learning_rate`"),
        (ppo, [{"env_id": "Acrobot-v1"}, {}], "can't differ in `env_id`"),
        (sac, [{"batch_size": 8}, {}], r"can't differ in `batch_size`: .* `tau`"),
        (ppo, [{"device": "auto"}, {}], "can't differ in `device`"),
        (ppo, [{"workers": "auto"}] * 2, "`workers` 'auto' measures a single run"),
        (ppo, [{"policies": "left,right"}] * 2, "lanes have one policy each"),
        (ppo, [], "at least one"),
    ],
)
def test_invalid_lanes_are_refused(tmp_path, module, lane_options, message):
    lane_configs = [module.Config(**options, runs_dir=str(tmp_path)) for options in lane_options]
    with pytest.raises(ConfigError, match=message):
        train_lanes(module.algorithm, lane_configs)
    assert not os.listdir(tmp_path)
