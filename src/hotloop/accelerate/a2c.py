"""A2C of Stable-Baselines3 with hotloop's update and acting."""

from __future__ import annotations

from typing import Any, NamedTuple

import stable_baselines3
from torch import Tensor
from torch.nn.functional import mse_loss

from hotloop.accelerate.acceleration import few_threads
from hotloop.accelerate.on_policy import (
    Objective,
    OnPolicyModel,
    Terms,
    entropy_loss,
    normalized,
    record_policy,
)
from hotloop.learner import Scalar


class Hyper(NamedTuple):
    """Hyper-parameters that may change during training."""

    learning_rate: Scalar
    ent_coef: Scalar
    vf_coef: Scalar
    max_grad_norm: Scalar


class A2C(OnPolicyModel, stable_baselines3.A2C):  # pyright: ignore
    """`stable_baselines3.A2C` with hotloop's update and acting."""

    def _hyper(self) -> Hyper:
        return Hyper(
            learning_rate=float(self.policy.optimizer.param_groups[0]["lr"]),
            ent_coef=float(self.ent_coef),
            vf_coef=float(self.vf_coef),
            max_grad_norm=float(self.max_grad_norm),
        )

    def _structure(self) -> tuple[Any, ...]:
        return (bool(self.normalize_advantage),)

    def _objective(self) -> Objective:
        normalize_advantage = self.normalize_advantage

        def objective(
            values: Tensor,
            log_prob: Tensor,
            entropy: Tensor | None,
            fields: dict[str, Tensor],
            hyper: Hyper,
        ) -> Terms:
            advantages = fields["advantages"]
            if normalize_advantage:
                advantages = normalized(advantages)
            policy_loss = -(advantages * log_prob).mean()
            value_loss = mse_loss(fields["returns"], values)
            negative_entropy = entropy_loss(entropy, log_prob)
            metrics = {
                "entropy_loss": negative_entropy,
                "policy_loss": policy_loss,
                "value_loss": value_loss,
            }
            loss = policy_loss + hyper.ent_coef * negative_entropy + hyper.vf_coef * value_loss
            return loss, metrics, None

        return objective

    def _minibatch_size(self) -> int:
        return self.n_steps * self.n_envs

    def _num_minibatches(self) -> int:
        return 1

    def train(self) -> None:
        """Update the policy with the current rollout, in one gradient step."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        update = self.prepared_update()
        if update is None:
            super().train()
            return
        self.acceleration.num_trains += 1
        with few_threads(update.batch_size, update.num_parameters):
            metrics = [update(samples) for samples in self.rollout_buffer.get(batch_size=None)][-1]
        self._n_updates += 1
        for name in ("entropy_loss", "policy_loss", "value_loss"):
            self.logger.record(f"train/{name}", metrics[name])
        record_policy(self)
