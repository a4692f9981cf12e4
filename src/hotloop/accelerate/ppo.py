"""PPO of Stable-Baselines3 with hotloop's update and acting."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import stable_baselines3
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from hotloop.accelerate.acceleration import few_threads
from hotloop.accelerate.on_policy import (
    Objective,
    OnPolicyModel,
    PolicyUpdate,
    Terms,
    entropy_loss,
    normalized,
    record_policy,
)
from hotloop.learner import Scalar


class Hyper(NamedTuple):
    """Hyper-parameters that may change during training."""

    learning_rate: Scalar
    clip_range: Scalar
    clip_range_vf: Scalar
    ent_coef: Scalar
    vf_coef: Scalar
    max_grad_norm: Scalar
    target_kl: Scalar


class ClippedPolicyModel(OnPolicyModel):
    """The mixin of PPO and its relatives: several passes in minibatches, a clipped objective."""

    def _hyper(self) -> Hyper:
        progress = self._current_progress_remaining
        return Hyper(
            learning_rate=float(self.policy.optimizer.param_groups[0]["lr"]),
            clip_range=float(self.clip_range(progress)),
            clip_range_vf=(
                0.0 if self.clip_range_vf is None else float(self.clip_range_vf(progress))
            ),
            ent_coef=float(self.ent_coef),
            vf_coef=float(self.vf_coef),
            max_grad_norm=float(self.max_grad_norm),
            target_kl=0.0 if self.target_kl is None else float(self.target_kl),
        )

    def _structure(self) -> tuple[Any, ...]:
        return (
            bool(self.normalize_advantage),
            self.clip_range_vf is not None,
            self.target_kl is not None,
        )

    def _objective(self) -> Objective:
        return clipped_objective(*self._structure())

    def _minibatch_size(self) -> int:
        return min(self.batch_size, self.n_steps * self.n_envs)

    def _num_minibatches(self) -> int:
        return self.n_epochs * math.ceil(self.n_steps * self.n_envs / self.batch_size)

    def train(self) -> None:
        """Update the policy with the current rollout."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        update = self.prepared_update()
        if update is None:
            super().train()  # pyright: ignore
            return
        self.acceleration.num_trains += 1
        with few_threads(update.batch_size, update.num_parameters):
            metrics, last_epoch = self._pass_over_rollout(update)
        record = self.logger.record
        record("train/entropy_loss", np.mean([x["entropy_loss"] for x in metrics]))
        record("train/policy_gradient_loss", np.mean([x["policy_loss"] for x in metrics]))
        record("train/value_loss", np.mean([x["value_loss"] for x in metrics]))
        # float32, as in the original: loggers print it with all digits.
        record("train/approx_kl", np.float32(np.mean([x["approx_kl"] for x in last_epoch])))
        record("train/clip_fraction", np.mean([x["clip_fraction"] for x in metrics]))
        record("train/loss", metrics[-1]["loss"])
        record_policy(self)
        progress = self._current_progress_remaining
        record("train/clip_range", self.clip_range(progress))
        if self.clip_range_vf is not None:
            record("train/clip_range_vf", self.clip_range_vf(progress))

    def _pass_over_rollout(
        self, update: PolicyUpdate
    ) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """Make all gradient steps. Return the metrics of all, and of the last epoch."""
        metrics: list[dict[str, float]] = []
        last_epoch: list[dict[str, float]] = []
        for epoch in range(self.n_epochs):
            last_epoch = []
            kl = -math.inf
            for samples in self._minibatches(self.batch_size):
                last_epoch.append(update(samples))
                kl = last_epoch[-1]["approx_kl"]
                # A minibatch with too large a KL has changed nothing, see `clipped_objective`.
                if self.target_kl is not None and kl > 1.5 * self.target_kl:
                    break
            metrics += last_epoch
            self._n_updates += 1
            if self.target_kl is not None and kl > 1.5 * self.target_kl:
                if self.verbose >= 1:
                    print(f"Early stopping at step {epoch} due to reaching max kl: {kl:.2f}")
                break
        return metrics, last_epoch


def clipped_objective(
    normalize_advantage: bool, has_value_clip: bool, has_target_kl: bool
) -> Objective:
    """Return PPO's loss: L_policy + c_e (−H) + c_v L_value.

    Schulman et al. 2017, arXiv:1707.06347, eq. 9.
    """

    def objective(
        values: Tensor,
        log_prob: Tensor,
        entropy: Tensor | None,
        fields: dict[str, Tensor],
        hyper: Hyper,
    ) -> Terms:
        advantages = fields["advantages"]
        if normalize_advantage and len(advantages) > 1:
            advantages = normalized(advantages)
        log_ratio = log_prob - fields["old_log_prob"]
        ratio = log_ratio.exp()
        epsilon = hyper.clip_range
        clipped = torch.clamp(ratio, 1 - epsilon, 1 + epsilon)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        if has_value_clip:
            old_values = fields["old_values"]
            change = torch.clamp(values - old_values, -hyper.clip_range_vf, hyper.clip_range_vf)
            values = old_values + change
        value_loss = mse_loss(fields["returns"], values)
        negative_entropy = entropy_loss(entropy, log_prob)
        approx_kl = (ratio.detach() - 1 - log_ratio.detach()).mean()
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": negative_entropy,
            "approx_kl": approx_kl,
            "clip_fraction": ((ratio.detach() - 1).abs() > epsilon).float().mean(),
        }
        loss = policy_loss + hyper.ent_coef * negative_entropy + hyper.vf_coef * value_loss
        return loss, metrics, ~(approx_kl > 1.5 * hyper.target_kl) if has_target_kl else None

    return objective


class PPO(ClippedPolicyModel, stable_baselines3.PPO):  # pyright: ignore
    """`stable_baselines3.PPO` with hotloop's update and acting."""
