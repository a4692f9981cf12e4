"""Option names of other libraries, for errors that give hotloop's name instead."""

from __future__ import annotations

from collections.abc import Collection

# A name of Stable-Baselines3, CleanRL or RLlib → hotloop's options with that meaning.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "activation_fn": ("activation",),
    "anneal_learning_rate": ("learning_rate",),
    "anneal_lr": ("learning_rate",),
    "batch_size": ("num_minibatches",),
    "capture_video": ("eval_videos",),
    "clip_coef": ("clip_range",),
    "clip_param": ("clip_range",),
    "clip_range_vf": ("clip_value_loss",),
    "clip_vloss": ("clip_value_loss",),
    "compile": ("execution",),
    "cuda": ("device",),
    "end_e": ("epsilon_end",),
    "ent_coef": ("entropy_coef", "alpha"),
    "env": ("env_id",),
    "env_name": ("env_id",),
    "eval_freq": ("eval_interval",),
    "exploration_final_eps": ("epsilon_end",),
    "exploration_initial_eps": ("epsilon_start",),
    "gradient_steps": ("update_to_data",),
    "lam": ("gae_lambda",),
    "lambda": ("gae_lambda",),
    "learning_rate": ("policy_learning_rate", "critic_learning_rate"),
    "lr": ("learning_rate", "policy_learning_rate", "critic_learning_rate"),
    "n_envs": ("num_envs",),
    "n_epochs": ("update_epochs",),
    "n_eval_episodes": ("eval_episodes",),
    "n_steps": ("num_steps", "n_step"),
    "net_arch": ("hidden_sizes",),
    "norm_adv": ("normalize_advantages",),
    "norm_obs": ("normalize_obs",),
    "norm_reward": ("normalize_reward",),
    "normalize_advantage": ("normalize_advantages",),
    "num_epochs": ("update_epochs",),
    "num_sgd_iter": ("update_epochs",),
    "num_timesteps": ("total_timesteps",),
    "num_workers": ("workers",),
    "policy_delay": ("policy_frequency",),
    "policy_lr": ("policy_learning_rate",),
    "q_lr": ("critic_learning_rate", "learning_rate"),
    "replay_buffer_class": ("replay",),
    "rollout_fragment_length": ("num_steps",),
    "save_freq": ("checkpoint_interval",),
    "start_e": ("epsilon_start",),
    "steps": ("total_timesteps",),
    "target_network_frequency": ("target_interval",),
    "target_noise_clip": ("noise_clip",),
    "target_policy_noise": ("policy_noise",),
    "target_update_interval": ("target_interval",),
    "tensorboard_log": ("track",),
    "timesteps": ("total_timesteps",),
    "total_steps": ("total_timesteps",),
    "train_batch_size": ("num_steps", "batch_size"),
    "train_freq": ("train_frequency",),
    "vf_coef": ("value_coef",),
    "wandb_project_name": ("track",),
}

# How to convert a value that does not have the same meaning.
_CONVERSIONS = {
    "anneal_learning_rate": "`linear:1e-3,0` decreases, a number is constant",
    "anneal_lr": "`linear:1e-3,0` decreases, a number is constant",
    "batch_size": "num_steps × num_envs / batch_size",
    "capture_video": "with `eval_interval`",
    "gradient_steps": "gradient_steps / (train_freq × n_envs)",
    "net_arch": "such as `64 64`",
    "tensorboard_log": "`tensorboard`; the files are in the run directory",
    "wandb_project_name": "`wandb`, with the project in the variable WANDB_PROJECT",
}


def translate(name: str, known: Collection[str]) -> str:
    """Return the end of an error about an option of another library, or an empty string.

    Args:
        name: The unknown option, with underscores.
        known: The options of the algorithm.
    """
    names = [option for option in OTHER_NAMES.get(name, ()) if option in known]
    if not names:
        return ""
    conversion = _CONVERSIONS.get(name, "")
    return f"; use {' and '.join(f'`{option}`' for option in names)}" + (
        f" ({conversion})" if conversion else ""
    )
