"""Trainings of PPO with Tianshou, Sample Factory, RLlib and PufferLib, for the migration pages.

Every library gets the same environments, network and hyper-parameters, in its own names. Each runs
its environments in this process, and a wrapper around them records the episodes.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import storage
from bench.train.settings import COMMON, SETTINGS

# Distributions on the package index, by name of the peer.
DISTRIBUTIONS = {
    "tianshou": "tianshou",
    "sample_factory": "sample-factory",
    "rllib": "ray",
    "pufferlib": "pufferlib-core",
}
GAMMA, GAE_LAMBDA, CLIP_RANGE, VALUE_COEF, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.5, 0.5
ADAM_EPS, HIDDEN_SIZES = 1e-5, (64, 64)


class EpisodeLog:
    """Makes environments that share a count of steps and a list of finished episodes."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        self.timesteps = 0
        self.episodes: list[list[float]] = []

    def make(self, *_: Any, **__: Any) -> Any:
        """Return a new environment whose episodes are recorded."""
        import gymnasium

        log = self

        class Recorded(gymnasium.Wrapper):
            """Adds each finished episode to the log."""

            episode_return = 0.0

            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                self.episode_return = 0.0
                return self.env.reset(seed=seed, options=options)

            def step(self, action: Any) -> Any:
                obs, reward, terminated, truncated, info = self.env.step(action)
                log.timesteps += 1
                self.episode_return += float(reward)
                if terminated or truncated:
                    log.episodes.append([log.timesteps, self.episode_return])
                return obs, reward, terminated, truncated, info

        return Recorded(gymnasium.make(self.env_id))


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    settings = {**COMMON["ppo"], **SETTINGS["ppo"][options.env_id]}
    batch_size = settings["num_envs"] * settings["num_steps"]
    return {
        **settings,
        "batch_size": batch_size,
        "minibatch_size": batch_size // settings["num_minibatches"],
    }


def run_tianshou(options: argparse.Namespace, log: EpisodeLog, folder: Path) -> None:
    """Train once with Tianshou's procedural interface."""
    import torch
    from tianshou.algorithm import PPO  # pyright: ignore[reportMissingImports]
    from tianshou.algorithm.modelfree.reinforce import (  # pyright: ignore[reportMissingImports]
        ProbabilisticActorPolicy,
    )
    from tianshou.algorithm.optim import (  # pyright: ignore[reportMissingImports]
        AdamOptimizerFactory,
    )
    from tianshou.data import (  # pyright: ignore[reportMissingImports]
        Collector,
        VectorReplayBuffer,
    )
    from tianshou.env import DummyVectorEnv  # pyright: ignore[reportMissingImports]
    from tianshou.trainer import OnPolicyTrainerParams  # pyright: ignore[reportMissingImports]
    from tianshou.utils.net.common import Net  # pyright: ignore[reportMissingImports]
    from tianshou.utils.net.discrete import (  # pyright: ignore[reportMissingImports]
        DiscreteActor,
        DiscreteCritic,
    )

    settings, env = _settings(options), log.make()
    environments = DummyVectorEnv([log.make] * settings["num_envs"])
    environments.seed(options.seed)
    torch.manual_seed(options.seed)
    shape = env.observation_space.shape
    trunks = [
        Net(state_shape=shape, hidden_sizes=HIDDEN_SIZES, activation=torch.nn.Tanh)
        for _ in range(2)
    ]
    algorithm = PPO(
        policy=ProbabilisticActorPolicy(
            actor=DiscreteActor(
                preprocess_net=trunks[0], action_shape=env.action_space.n, softmax_output=False
            ),
            dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
            action_scaling=False,
            action_space=env.action_space,
        ),
        critic=DiscreteCritic(preprocess_net=trunks[1]),
        optim=AdamOptimizerFactory(lr=settings["learning_rate"], eps=ADAM_EPS),
        eps_clip=CLIP_RANGE,
        vf_coef=VALUE_COEF,
        ent_coef=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        gae_lambda=GAE_LAMBDA,
        gamma=GAMMA,
    )
    buffer = VectorReplayBuffer(settings["batch_size"], settings["num_envs"])
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector(algorithm, environments, buffer),
            max_epochs=1,
            epoch_num_steps=options.timesteps,
            collection_step_num_env_steps=settings["batch_size"],
            update_step_num_repetitions=settings["update_epochs"],
            batch_size=settings["minibatch_size"],
            show_progress=False,
            verbose=False,
        )
    )


def run_sample_factory(options: argparse.Namespace, log: EpisodeLog, folder: Path) -> None:
    """Train once with Sample Factory in its serial mode.

    Its ratio is clipped to 1 / (1 + ε) … 1 + ε.
    """
    from sample_factory.cfg.arguments import (  # pyright: ignore[reportMissingImports]
        parse_full_cfg,
        parse_sf_args,
    )
    from sample_factory.envs.env_utils import register_env  # pyright: ignore[reportMissingImports]
    from sample_factory.train import run_rl  # pyright: ignore[reportMissingImports]

    settings = _settings(options)
    register_env(options.env_id, log.make)
    values = {
        "env": options.env_id,
        "experiment": "peer",
        "train_dir": folder,
        "seed": options.seed,
        "device": "cpu",
        "serial_mode": True,
        "async_rl": False,
        "num_workers": 1,
        "num_envs_per_worker": settings["num_envs"],
        "worker_num_splits": 1,
        "rollout": settings["num_steps"],
        "batch_size": settings["minibatch_size"],
        "num_batches_per_epoch": settings["num_minibatches"],
        "num_epochs": settings["update_epochs"],
        "shuffle_minibatches": True,
        "use_rnn": False,
        "recurrence": 1,
        "learning_rate": settings["learning_rate"],
        "adam_eps": ADAM_EPS,
        "gamma": GAMMA,
        "gae_lambda": GAE_LAMBDA,
        "ppo_clip_ratio": CLIP_RANGE,
        "ppo_clip_value": 1e9,
        "value_loss_coeff": VALUE_COEF,
        "exploration_loss_coeff": 0.0,
        "max_grad_norm": MAX_GRAD_NORM,
        "value_bootstrap": True,
        "normalize_input": False,
        "normalize_returns": False,
        "actor_critic_share_weights": False,
        "nonlinearity": "tanh",
        "train_for_env_steps": options.timesteps,
    }
    arguments = [f"--{name}={value}" for name, value in values.items()]
    arguments += ["--encoder_mlp_layers", *map(str, HIDDEN_SIZES)]
    parser, _ = parse_sf_args(argv=arguments)
    run_rl(parse_full_cfg(parser, arguments))


_logs: list[EpisodeLog] = []


def make_recorded(_: Any) -> Any:
    """Return a new environment of RLlib, recorded by the last of `_logs`."""
    return _logs[-1].make()


def run_rllib(options: argparse.Namespace, log: EpisodeLog, folder: Path) -> None:
    """Train once with RLlib, its env runner and its learner in this process."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    settings = _settings(options)
    # RLlib pickles what it registers. With `log.make` it would count in a copy of the log.
    _logs.append(log)
    register_env("recorded", make_recorded)
    ray.init("local", num_cpus=1, include_dashboard=False, logging_level=logging.ERROR)
    config = (
        PPOConfig()
        .environment("recorded")
        .debugging(seed=options.seed, log_level="ERROR")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=settings["num_envs"],
            rollout_fragment_length=settings["num_steps"],
        )
        .training(
            lr=settings["learning_rate"],
            gamma=GAMMA,
            lambda_=GAE_LAMBDA,
            clip_param=CLIP_RANGE,
            vf_clip_param=float("inf"),
            vf_loss_coeff=VALUE_COEF,
            entropy_coeff=0.0,
            use_kl_loss=False,
            grad_clip=MAX_GRAD_NORM,
            grad_clip_by="global_norm",
            num_epochs=settings["update_epochs"],
            minibatch_size=settings["minibatch_size"],
            train_batch_size_per_learner=settings["batch_size"],
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(HIDDEN_SIZES), fcnet_activation="tanh", vf_share_layers=False
            )
        )
    )
    algorithm = config.build_algo()
    while log.timesteps < options.timesteps:
        algorithm.train()
    algorithm.stop()
    ray.shutdown()


def run_pufferlib(options: argparse.Namespace, log: EpisodeLog, folder: Path) -> None:
    """Train once with PufferLib 3's `PuffeRL`.

    It draws minibatches with replacement, clips rewards to ±1, and treats a truncation as the
    next step of the episode. Its value loss is half the squared error.
    """
    import pufferlib.emulation  # pyright: ignore[reportMissingImports]
    import pufferlib.pufferl  # pyright: ignore[reportMissingImports]
    import pufferlib.vector  # pyright: ignore[reportMissingImports]
    import torch

    settings = _settings(options)
    torch.manual_seed(options.seed)
    environments = pufferlib.vector.make(
        lambda **kwargs: pufferlib.emulation.GymnasiumPufferEnv(env_creator=log.make, **kwargs),
        backend=pufferlib.vector.Serial,
        num_envs=settings["num_envs"],
        seed=options.seed,
    )

    def layers(size: int) -> torch.nn.Sequential:
        widths = (environments.single_observation_space.shape[0], *HIDDEN_SIZES)
        modules: list[torch.nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            modules += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
        return torch.nn.Sequential(*modules, torch.nn.Linear(widths[-1], size))

    class Policy(torch.nn.Module):
        """Separate perceptrons for the policy and the value."""

        def __init__(self) -> None:
            super().__init__()
            self.policy, self.value = layers(environments.single_action_space.n), layers(1)

        def forward(self, obs: Any, state: Any = None) -> Any:
            return self.policy(obs.float()), self.value(obs.float())

        forward_eval = forward

    trainer = pufferlib.pufferl.PuffeRL(
        {
            "seed": options.seed,
            "device": "cpu",
            "torch_deterministic": True,
            "cpu_offload": False,
            "precision": "float32",
            "compile": False,
            "use_rnn": False,
            "env": options.env_id,
            "data_dir": str(folder),
            "checkpoint_interval": 1_000_000,
            "total_timesteps": options.timesteps,
            "batch_size": settings["batch_size"],
            "bptt_horizon": settings["num_steps"],
            "minibatch_size": settings["minibatch_size"],
            "max_minibatch_size": settings["minibatch_size"],
            "update_epochs": settings["update_epochs"],
            "optimizer": "adam",
            "learning_rate": settings["learning_rate"],
            "anneal_lr": False,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_eps": ADAM_EPS,
            "gamma": GAMMA,
            "gae_lambda": GAE_LAMBDA,
            "clip_coef": CLIP_RANGE,
            "vf_clip_coef": 1e9,
            "vf_coef": 2 * VALUE_COEF,
            "ent_coef": 0.0,
            "max_grad_norm": MAX_GRAD_NORM,
            "vtrace_rho_clip": 1.0,
            "vtrace_c_clip": 1.0,
            "prio_alpha": 0.0,
            "prio_beta0": 1.0,
        },
        environments,
        Policy(),
    )
    while trainer.global_step < options.timesteps:
        trainer.evaluate()
        trainer.train()
    trainer.utilization.stop()  # its thread would keep this process alive
    environments.close()


TRAININGS: dict[str, Callable[[argparse.Namespace, EpisodeLog, Path], None]] = {
    "tianshou": run_tianshou,
    "sample_factory": run_sample_factory,
    "rllib": run_rllib,
    "pufferlib": run_pufferlib,
}


def run_other_peer(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train once with a library, and return its figures."""
    import torch

    torch.set_num_threads(options.threads)
    log = EpisodeLog(options.env_id)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        TRAININGS[name](options, log, Path(folder))
    return {
        "timesteps": log.timesteps,
        "loop_s": time.perf_counter() - started,
        "compile_s": 0.0,
        "passed": [],
        "episodes": log.episodes,
        "versions": storage.versions_of([DISTRIBUTIONS[name]]),
    }
