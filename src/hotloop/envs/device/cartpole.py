"""CartPole in plain torch: Gymnasium's CartPole-v1, with many thousand copies at once.

Barto, Sutton & Anderson 1983, "Neuronlike adaptive elements that can solve difficult learning
control problems". Constants, limits and the order of the integration are those of Gymnasium.
Gymnasium computes in float64, this module in float32, which is faster on accelerators.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hotloop.envs.device.functional import TensorVectorEnv
from hotloop.envs.device.protocol import Tensors
from hotloop.envs.device.specs import box_observations, discrete_actions
from hotloop.errors import ConfigError

_GRAVITY = 9.8
_CART_MASS, _POLE_MASS = 1.0, 0.1
_TOTAL_MASS = _CART_MASS + _POLE_MASS
_HALF_LENGTH = 0.5
_POLE_MOMENT = _POLE_MASS * _HALF_LENGTH
_FORCE = 10.0
_STEP_S = 0.02
_MAX_ANGLE = 12 * 2 * math.pi / 360
_MAX_POSITION = 2.4
_INITIAL_BOUND = 0.05  # bound on the values of an initial state


class CartPole:
    """A cart with a pole, pushed left (0) or right (1). See `TensorEnvironment`.

    The state is `motion`, float32, (N, 4): position (m), speed (m/s), angle (rad), angular speed
    (rad/s).

    Args:
        max_episode_steps: maximum length of an episode.

    Raises:
        ConfigError: `max_episode_steps` is less than 1.
    """

    num_uniform = 4
    obs_spec = box_observations(4)
    action_spec = discrete_actions(2)

    def __init__(self, max_episode_steps: int = 500) -> None:
        if max_episode_steps < 1:
            raise ConfigError(
                f"`max_episode_steps` must be at least 1, got {max_episode_steps}: 500 is "
                "the limit of CartPole-v1"
            )
        self.max_episode_steps = max_episode_steps

    def initial(self, uniform: Tensor) -> Tensors:
        """See `TensorEnvironment`."""
        return {"motion": (2.0 * _INITIAL_BOUND) * uniform - _INITIAL_BOUND}

    def observation(self, state: Tensors) -> Tensor:
        """See `TensorEnvironment`."""
        return state["motion"]

    def step(self, state: Tensors, action: Tensor) -> tuple[Tensors, Tensor, Tensor]:
        """See `TensorEnvironment`."""
        x, x_speed, angle, angle_speed = state["motion"].unbind(-1)
        force = (2.0 * _FORCE) * action.to(x.dtype) - _FORCE
        cos, sin = angle.cos(), angle.sin()
        cart_term = (force + _POLE_MOMENT * angle_speed.square() * sin) / _TOTAL_MASS
        angle_acceleration = (_GRAVITY * sin - cos * cart_term) / (
            _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * cos.square() / _TOTAL_MASS)
        )
        acceleration = cart_term - _POLE_MOMENT * angle_acceleration * cos / _TOTAL_MASS
        x = x + _STEP_S * x_speed
        x_speed = x_speed + _STEP_S * acceleration
        angle = angle + _STEP_S * angle_speed
        angle_speed = angle_speed + _STEP_S * angle_acceleration
        terminated = (x.abs() > _MAX_POSITION) | (angle.abs() > _MAX_ANGLE)
        motion = torch.stack([x, x_speed, angle, angle_speed], -1)
        return {"motion": motion}, torch.ones_like(x), terminated


def make_cartpole(
    num_envs: int, device: torch.device, *, max_episode_steps: int = 500
) -> TensorVectorEnv:
    """Return N CartPoles on a device.

    Raises:
        ConfigError: `max_episode_steps` is less than 1.
    """
    return TensorVectorEnv(CartPole(max_episode_steps), num_envs, device)
