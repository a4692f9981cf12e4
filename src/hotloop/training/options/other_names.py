"""Option names of other libraries, for errors that give hotloop's name instead."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Translation(NamedTuple):
    """The answer to an option of another library.

    Attributes:
        options: hotloop's options with that meaning. An algorithm has some of them.
        note: how to convert the value, or what to do if there is no such option.
    """

    options: tuple[str, ...]
    note: str


def _answer(*options: str, note: str = "") -> Translation:
    return Translation(options, note)


# Names of Stable-Baselines3 and its zoo, CleanRL, RLlib, Tianshou, Sample Factory and PufferLib.
OTHER_NAMES: dict[str, Translation] = {
    "action_noise": _answer("exploration", "exploration_noise"),
    "activation_fn": _answer("activation"),
    "anneal_learning_rate": _answer(
        "learning_rate", note="`linear:1e-3,0` decreases, a number is constant"
    ),
    "anneal_lr": _answer("learning_rate", note="`linear:1e-3,0` decreases, a number is constant"),
    "autotune": _answer("alpha", note="None learns it, a number is constant"),
    "batch_size": _answer("num_minibatches", note="num_steps × num_envs / batch_size"),
    "bptt_horizon": _answer("num_steps"),
    "callback": _answer(note="pass `callbacks=[…]` to `train`, or set `stop_at_return` and others"),
    "callbacks": _answer(note="it is an argument of `train`"),
    "capture_video": _answer("eval_videos", note="with `eval_interval`"),
    "clip_coef": _answer("clip_range"),
    "clip_param": _answer("clip_range"),
    "clip_range_vf": _answer("clip_value_loss", note="which uses `clip_range`"),
    "clip_vloss": _answer("clip_value_loss"),
    "compile": _answer("execution"),
    "cuda": _answer("device"),
    "end_e": _answer("epsilon_end"),
    "ent_coef": _answer("entropy_coef", "alpha"),
    "entropy_coeff": _answer("entropy_coef"),
    "env": _answer("env_id"),
    "env_config": _answer("env_kwargs"),
    "env_name": _answer("env_id"),
    "environment": _answer("env_id"),
    "eps_clip": _answer("clip_range"),
    "eval_freq": _answer("eval_interval"),
    "exp_name": _answer("run_dir"),
    "experiment": _answer("run_dir"),
    "exploration_final_eps": _answer("epsilon_end"),
    "exploration_initial_eps": _answer("epsilon_start"),
    "fcnet_hiddens": _answer("hidden_sizes", note="such as `64 64`"),
    "features_extractor_class": _answer(
        "network", note="a class or function of yours that makes a module"
    ),
    "grad_clip": _answer("max_grad_norm"),
    "gradient_steps": _answer("update_to_data", note="gradient_steps / (train_freq × n_envs)"),
    "id": _answer("env_id"),
    "lam": _answer("gae_lambda"),
    "lambda": _answer("gae_lambda"),
    "learning_rate": _answer("policy_learning_rate", "critic_learning_rate"),
    "log_interval": _answer("report_interval", note="in transitions"),
    "log_std_init": _answer("initial_log_std"),
    "lr": _answer("learning_rate", "policy_learning_rate", "critic_learning_rate"),
    "minibatch_size": _answer("num_minibatches", note="num_steps × num_envs / minibatch_size"),
    "n_critics": _answer("num_critics"),
    "n_envs": _answer("num_envs"),
    "n_epochs": _answer("update_epochs"),
    "n_eval_episodes": _answer("eval_episodes"),
    "n_quantiles": _answer("num_quantiles"),
    "n_steps": _answer("num_steps", "n_step"),
    "n_timesteps": _answer("total_timesteps"),
    "net_arch": _answer("hidden_sizes", note="such as `64 64`"),
    "norm_adv": _answer("normalize_advantages"),
    "norm_obs": _answer("normalize_obs"),
    "norm_reward": _answer("normalize_reward"),
    "normalize": _answer("normalize_obs", "normalize_reward"),
    "normalize_advantage": _answer("normalize_advantages"),
    "num_env_runners": _answer("workers"),
    "num_envs_per_env_runner": _answer("envs_per_worker"),
    "num_envs_per_worker": _answer("envs_per_worker"),
    "num_epochs": _answer("update_epochs"),
    "num_iterations": _answer("total_timesteps", note="num_iterations × num_steps × num_envs"),
    "num_sgd_iter": _answer("update_epochs"),
    "num_timesteps": _answer("total_timesteps"),
    "num_workers": _answer("workers"),
    "on_report": _answer(note="it is an argument of `train`"),
    "optimize_memory_usage": _answer(
        note="it is always on, since the buffer stores each observation once"
    ),
    "policy": _answer(
        "network", note="only for a network of your own; hotloop's fit the observations"
    ),
    "policy_delay": _answer("policy_frequency"),
    "policy_kwargs": _answer(
        "hidden_sizes",
        "activation",
        "network",
        note="instead of net_arch, activation_fn and features_extractor_class",
    ),
    "policy_lr": _answer("policy_learning_rate", "learning_rate"),
    "progress": _answer(note="it is an argument of `train`"),
    "progress_bar": _answer(note="pass `progress=False` to `train` to print nothing"),
    "q_lr": _answer("critic_learning_rate", "learning_rate"),
    "repeat_per_collect": _answer("update_epochs"),
    "replay_buffer_class": _answer("replay"),
    "replay_buffer_kwargs": _answer("replay_alpha", "replay_beta"),
    "reset_num_timesteps": _answer(
        note="`hotloop resume RUN`, or `resume_from` of `train`, continues a run"
    ),
    "resume_from": _answer(
        note="it is an argument of `train`, and `hotloop resume RUN` continues a run"
    ),
    "rollout": _answer("num_steps"),
    "rollout_fragment_length": _answer("num_steps"),
    "save_freq": _answer("checkpoint_interval"),
    "save_model": _answer(note="every run saves its policy: `hotloop.load(run_dir)` returns it"),
    "save_replay_buffer": _answer("save_replay"),
    "sde_sample_freq": _answer(note="only `hotloop accelerate` has it, in SB3's classes"),
    "seeds": _answer(
        note="`hotloop train … --seeds 1-3` and `hotloop.train_many` train with several seeds"
    ),
    "sgd_minibatch_size": _answer(
        "num_minibatches", note="num_steps × num_envs / sgd_minibatch_size"
    ),
    "start_e": _answer("epsilon_start"),
    "stats_window_size": _answer(note="returns are means over the last 100 episodes"),
    "steps": _answer("total_timesteps"),
    "target_network_frequency": _answer("target_interval"),
    "target_noise_clip": _answer("noise_clip"),
    "target_policy_noise": _answer("policy_noise"),
    "target_update_interval": _answer("target_interval"),
    "tb_log_name": _answer("run_dir", note="`track` opens TensorBoard"),
    "tensorboard_log": _answer("track", note="`tensorboard`; the files are in the run directory"),
    "timesteps": _answer("total_timesteps"),
    "top_quantiles_to_drop_per_net": _answer("num_dropped"),
    "torch_deterministic": _answer(note="runs with one seed are equal without it"),
    "total_env_steps": _answer("total_timesteps"),
    "total_steps": _answer("total_timesteps"),
    "train_batch_size": _answer("num_steps", "batch_size"),
    "train_dir": _answer("runs_dir"),
    "train_for_env_steps": _answer("total_timesteps"),
    "train_freq": _answer("train_frequency"),
    "training_num": _answer("num_envs"),
    "trained_agent": _answer("init_from", note="`hotloop resume RUN` continues a run"),
    "update_per_step": _answer("update_to_data"),
    "use_lstm": _answer("memory", note="such as `lstm:64`"),
    "use_rnn": _answer("memory", note="such as `gru:64`"),
    "use_sde": _answer(note="only `hotloop accelerate` has it, in SB3's classes"),
    "verbose": _answer(note="pass `progress=False` to `train` to print nothing"),
    "vf_clip_param": _answer("clip_value_loss", note="which uses `clip_range`"),
    "vf_coef": _answer("value_coef"),
    "vf_loss_coeff": _answer("value_coef"),
    "wandb_entity": _answer("track", note="`wandb`, with the entity in the variable WANDB_ENTITY"),
    "wandb_project_name": _answer(
        "track", note="`wandb`, with the project in the variable WANDB_PROJECT"
    ),
    "with_wandb": _answer("track", note="`wandb`"),
}


def translate(name: str, known: Collection[str]) -> str:
    """Return the end of an error about an option of another library, or an empty string.

    Args:
        name: The unknown option, with underscores.
        known: The options of the algorithm.
    """
    options, note = OTHER_NAMES.get(name, ((), ""))
    names = [f"`{option}`" for option in options if option in known]
    if not options:
        return f"; {note}" if note else ""
    return f"; use {' and '.join(names)}{f' ({note})' if note else ''}" if names else ""
