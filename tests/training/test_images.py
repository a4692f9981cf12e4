"""Training on images: workers, evaluation, export, videos and learning."""

import json

import numpy as np
import pytest

from hotloop.algorithms import dqn, ppo, sac
from hotloop.cli import main
from hotloop.envs import make_env
from hotloop.errors import ConfigError, SpaceError

CATCH, SIGNS = "tests.toy_images:Catch", "tests.toy_images:Signs"
SHORT = {"total_timesteps": 128, "execution": "eager", "num_envs": 2, "hidden_sizes": (8,)}
OPTIONS = {
    ppo: {"num_steps": 32, "update_epochs": 1, "num_minibatches": 2},
    dqn: {
        "learning_starts": 100,
        "batch_size": 16,
        "buffer_size": 1_000,
        "report_interval": 64,
        "save_replay": True,
    },
}


def config_of(algorithm, tmp_path, name, env_id, **options):
    return algorithm.Config(
        env_id=env_id, run_dir=str(tmp_path / name), **SHORT, **OPTIONS[algorithm], **options
    )


def test_workers_learn_what_one_process_does(tmp_path):
    options = {"workers": 2}
    inline = ppo.train(config_of(ppo, tmp_path, "inline", CATCH, backend="inline", **options))
    processes = ppo.train(config_of(ppo, tmp_path, "processes", CATCH, **options))
    for name, x in inline.policy.snapshot.params.items():
        np.testing.assert_array_equal(x, processes.policy.snapshot.params[name])


@pytest.mark.parametrize("env_id", [CATCH, SIGNS])
def test_a_run_is_evaluated_exported_and_filmed(tmp_path, capsys, env_id):
    onnxruntime = pytest.importorskip("onnxruntime")
    result = ppo.train(config_of(ppo, tmp_path, "run", env_id, eval_interval=64, eval_episodes=2))
    run = str(tmp_path / "run")
    assert main(["eval", run, "--episodes", "4"]) == 0
    assert main(["export", run, "--format", "onnx", "--output", str(tmp_path / "p.onnx")]) == 0
    output = capsys.readouterr().out
    assert "4 episodes" in output
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    spec = result.policy.network.obs_spec
    obs = np.random.default_rng(1).integers(0, 256, (5, *spec.shape), np.uint8)
    if spec.is_packed:
        parts = spec.unflatten(obs)
        parts["sign"][...] = np.array([[1.0], [-1.0], [0.5], [0.0], [-0.5]], np.float32)
    (name,) = (tensor.name for tensor in session.get_inputs())
    action, head, *_ = session.run(None, {name: obs})
    np.testing.assert_allclose(head, result.policy.head(obs), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(action, result.policy.act(obs))
    if env_id == CATCH:
        pytest.importorskip("imageio_ffmpeg")
        assert main(["eval", run, "--episodes", "1", "--video", str(tmp_path / "v.mp4")]) == 0
        assert (tmp_path / "v.mp4").stat().st_size > 1_000


@pytest.mark.slow
def test_compiled_training_equals_eager(tmp_path):
    runs = [
        ppo.train(
            ppo.Config(
                env_id=CATCH,
                run_dir=str(tmp_path / execution),
                **{**SHORT, **OPTIONS[ppo], "execution": execution, "total_timesteps": 256},
            )
        )
        for execution in ("eager", "compile")
    ]
    for name, x in runs[0].policy.snapshot.params.items():
        np.testing.assert_allclose(x, runs[1].policy.snapshot.params[name], atol=2e-3)


@pytest.mark.parametrize(
    ("algorithm", "env_id", "options", "error", "message"),
    [
        (ppo, "CartPole-v1", {"network": "nature"}, SpaceError, "choose `network` 'perceptron'"),
        (ppo, "CartPole-v1", {"layer_norm": True}, ConfigError, "`layer_norm` is for encoders"),
        (ppo, SIGNS, {"normalize_obs": True}, ConfigError, "also hold images"),
        (ppo, SIGNS, {"clip_obs": 10.0}, ConfigError, "also hold images"),
        (dqn, SIGNS, {"network": "nature"}, SpaceError, "at least 36×36"),
    ],
)
def test_networks_and_options_that_do_not_fit_are_refused(
    tmp_path, algorithm, env_id, options, error, message
):
    with pytest.raises(error, match=message):
        algorithm.train(config_of(algorithm, tmp_path, "run", env_id, **options))


def test_network_names_are_checked_first():
    with pytest.raises(Exception, match="there is no network 'natur'; did you mean 'nature'"):
        ppo.Config(network="natur")
    with pytest.raises(Exception, match="`my_nets:Net`"):
        sac.Config(network="Net")


def test_configuration_names_the_network(tmp_path):
    ppo.train(config_of(ppo, tmp_path, "run", CATCH, network="impala", layer_norm=True))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "impala" in json.dumps(config)
    assert make_env(CATCH).observation_space.shape == (40, 40, 1)


@pytest.mark.slow
def test_ppo_learns_to_catch_from_images(tmp_path):
    config = ppo.Config(
        env_id=CATCH,
        env_kwargs={"places": 6, "scale": 6},
        total_timesteps=40_000,
        num_envs=8,
        learning_rate=1e-3,
        update_epochs=4,
        entropy_coef=0.01,
        hidden_sizes=(),
        execution="eager",
        run_dir=str(tmp_path / "run"),
    )
    assert ppo.train(config).mean_return > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [ppo, dqn], ids=["ppo", "dqn"])
def test_image_and_number_are_combined(tmp_path, algorithm):
    options = {
        ppo: {"total_timesteps": 40_000, "learning_rate": 1e-3, "num_envs": 8, "update_epochs": 4},
        dqn: {
            "total_timesteps": 10_000,
            "learning_starts": 500,
            "batch_size": 32,
            "update_to_data": 0.5,
            "learning_rate": 1e-3,
            "exploration_fraction": 0.3,
            "epsilon_end": 0.01,
        },
    }[algorithm]
    options |= {"gamma": 0.0, "torch_threads": 1}  # steps are independent
    result = algorithm.train(
        algorithm.Config(env_id=SIGNS, execution="eager", run_dir=str(tmp_path / "run"), **options)
    )
    assert result.mean_return > 14.0  # of 20; either part alone gives 0
