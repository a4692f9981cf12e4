"""TD3 and DDPG of Stable-Baselines3 with hotloop's updates and acting."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import stable_baselines3
import torch
from stable_baselines3.td3.policies import Actor
from torch import Tensor
from torch.nn.functional import mse_loss

from hotloop.accelerate.acceleration import Unsupported
from hotloop.accelerate.acting_off_policy import deterministic_twin
from hotloop.accelerate.flat_parameters import FlatParameters, ModuleState
from hotloop.accelerate.module_calls import ModuleFunction
from hotloop.accelerate.off_policy import OffPolicyModel, OffPolicyUpdate, means
from hotloop.learner import Scalar, move_towards, value_and_grad


class Hyper(NamedTuple):
    """Hyper-parameters that may change during training."""

    actor_rate: Scalar
    critic_rate: Scalar
    noise_clip: Scalar
    gamma: Scalar
    tau: Scalar


@dataclass(slots=True)
class State:
    """The tensors that a gradient step changes in place."""

    actor: ModuleState
    critic: ModuleState
    actor_target: ModuleState
    critic_target: ModuleState


class Td3Update(OffPolicyUpdate):
    """A gradient step of the critics. Every few steps also one of the actor and the targets.

    Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1, as Stable-Baselines3 computes it.
    """

    def __init__(self, model: Any, batch_size: int) -> None:
        shared = {id(x) for x in model.actor.parameters()}
        if shared & {id(x) for x in model.critic.parameters()}:
            raise Unsupported("its actor and critic share a features extractor with parameters")
        self._actor = FlatParameters(model.actor, model.actor.optimizer)
        self._critic = FlatParameters(model.critic, model.critic.optimizer)
        actor_target = FlatParameters(model.actor_target)
        critic_target = FlatParameters(model.critic_target)
        networks = [self._actor, self._critic, actor_target, critic_target]
        super().__init__(model, batch_size, networks, State(*(x.state for x in networks)))

        self._noise_std = model.target_policy_noise
        self._action = ModuleFunction(self._actor, model.actor.forward)
        self._values = ModuleFunction(self._critic, model.critic.forward)
        self._first_value = ModuleFunction(self._critic, model.critic.q1_forward)
        self._target_action = ModuleFunction(actor_target, model.actor_target.forward)
        self._target_values = ModuleFunction(critic_target, model.critic_target.forward)
        calls = model._expected_calls()
        self._critic_step = self.bind(self.critic_step, "update of the critics", calls)
        calls //= model.policy_delay
        self._actor_step = self.bind(self.actor_step, "update of the actor", calls)

    def draw_noise(self, actions: Tensor) -> Tensor:
        """Return noise of the target actions before it is clipped, (B, A)."""
        return torch.empty_like(actions).normal_(0, self._noise_std)

    def run(self, model: Any, gradient_steps: int, hyper: Hyper) -> dict[str, float]:
        critic_rows: list[Tensor] = []
        actor_rows: list[Tensor] = []
        self._noise_std = model.target_policy_noise
        for _ in range(gradient_steps):
            model._n_updates += 1
            batch = self.next_batch(model)
            critic_rows.append(self._critic_step(batch, self.draw_noise(batch[0]))[0])
            if model._n_updates % model.policy_delay == 0:
                actor_rows.append(self._actor_step(batch, None)[0])
        return {**means(self._actor_step, actor_rows), **means(self._critic_step, critic_rows)}

    def critic_step(
        self, state: State, batch: tuple[Any, ...], noise: Tensor, hyper: Hyper
    ) -> dict[str, Tensor]:
        """Make one gradient step of the critics in place. A pure function of tensors."""
        rows = self.unpack(batch, hyper.gamma)
        with torch.no_grad():
            target = state.actor_target
            action = self._target_action(target.params, target.constants, rows.next_obs)
            noise = torch.maximum(torch.minimum(noise, hyper.noise_clip), -hyper.noise_clip)
            action = (action + noise).clamp(-1, 1)
            target = state.critic_target
            values = self._target_values(target.params, target.constants, rows.next_obs, action)
            target = rows.rewards + rows.discounts * reduce(torch.minimum, values)

        def loss(params: Tensor) -> tuple[Tensor, tuple[()]]:
            values = self._values(params, state.critic.constants, rows.obs, rows.actions)
            return torch.stack([mse_loss(value, target) for value in values]).sum(), ()

        total, _, grad = value_and_grad(loss, state.critic.params)
        self.optimize(self._critic, state.critic, grad, hyper.critic_rate)
        return {"critic_loss": total}

    def actor_step(
        self, state: State, batch: tuple[Any, ...], noise: None, hyper: Hyper
    ) -> dict[str, Tensor]:
        """Make one gradient step of the actor, and move the targets. A pure function of tensors."""
        rows = self.unpack(batch, hyper.gamma)

        def loss(params: Tensor) -> tuple[Tensor, tuple[()]]:
            action = self._action(params, state.actor.constants, rows.obs)
            critic = state.critic
            return -self._first_value(critic.params, critic.constants, rows.obs, action).mean(), ()

        total, _, grad = value_and_grad(loss, state.actor.params)
        self.optimize(self._actor, state.actor, grad, hyper.actor_rate)
        for network, target in (
            (state.critic, state.critic_target),
            (state.actor, state.actor_target),
        ):
            move_towards(target.params, network.params, hyper.tau)
            for name, value in target.constants.items():
                if "running_" in name:
                    value.copy_(network.constants[name])
        return {"actor_loss": total}


class DelayedModel(OffPolicyModel):
    """The mixin of TD3 and DDPG."""

    _update_class = Td3Update

    def _optimizers(self) -> list[Any]:
        return [self.actor.optimizer, self.critic.optimizer]

    def _structure(self) -> tuple[Any, ...]:
        return ()

    def _hyper(self) -> Hyper:
        actor_rate, critic_rate = (float(x.param_groups[0]["lr"]) for x in self._optimizers())
        return Hyper(
            actor_rate=actor_rate,
            critic_rate=critic_rate,
            noise_clip=float(self.target_noise_clip),
            gamma=float(self.gamma),
            tau=float(self.tau),
        )

    def _record(self, means: dict[str, float]) -> None:
        for name in ("actor_loss", "critic_loss"):
            if name in means:
                self.logger.record(f"train/{name}", means[name])

    def _prepare_twin(self) -> Any:
        return deterministic_twin(self, Actor)


class TD3(DelayedModel, stable_baselines3.TD3):  # pyright: ignore
    """`stable_baselines3.TD3` with hotloop's updates and acting."""


class DDPG(TD3, stable_baselines3.DDPG):  # pyright: ignore
    """`stable_baselines3.DDPG` with hotloop's updates and acting."""
