"""A policy for environments on the device: the counterpart of `ActingPolicy` on tensors.

It reads the learner's own vector of parameters and receives only the scale of observations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.base.transfer import Uploads, to_device
from hotloop.errors import ConfigError
from hotloop.ops.scaling import scale_obs
from hotloop.policies.acting import ActingPolicy
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.policies.spec import Network


class PolicyTensors(NamedTuple):
    """The tensors that a policy reads. They change in place and are never replaced.

    Attributes:
        params: float32, (P,).
        mean, std: scale of the observations, float32, obs_shape; None: no scale.
        clip: bound on scaled observations, float32, 0-d; None: no scale.
    """

    params: Tensor
    mean: Tensor | None
    std: Tensor | None
    clip: Tensor | None


class DevicePolicy:
    """A network that acts on a device.

    Args:
        nets: the learned network.
        params: its parameters in the learner's state, (P,).
        host: the same policy on the host. It receives each snapshot too.

    Attributes:
        tensors: the tensors that the policy reads.

    Raises:
        ConfigError: the network is recurrent or has no value function.
    """

    def __init__(self, nets: LearnedNetwork, params: Tensor, host: ActingPolicy) -> None:
        if host.memory_size or not host.has_value:
            problem = "a memory" if host.memory_size else "no value function"
            raise ConfigError(
                "environments on the device need a network with a value function and without "
                f"memory, got one with {problem}: leave `memory` out, or train in a Gymnasium "
                "environment"
            )
        self.nets, self.host = nets, host
        dtype = "float32" if self.network.acts_without_torch else self.network.obs_spec.dtype
        self._dtype = getattr(torch, dtype)
        self._uploads = Uploads(params.device)
        self.tensors = PolicyTensors(params, None, None, None)
        scale = host.obs_scale
        if scale is not None:
            arrays = (scale.mean, scale.std, np.array(scale.clip, np.float32))
            self.tensors = PolicyTensors(
                params, *(to_device(x, params.device).clone() for x in arrays)
            )

    @property
    def network(self) -> Network:
        """Return the network that acts."""
        return self.host.network

    def load(self, snapshot: PolicySnapshot) -> None:
        """Copy the scale of observations from a snapshot. The parameters are the learner's."""
        self.host.load(snapshot)
        scale, tensors = snapshot.obs_scale, self.tensors
        if scale is not None and tensors.mean is not None and tensors.std is not None:
            with self._uploads as uploads:
                uploads.put("mean", tensors.mean, scale.mean)
                uploads.put("std", tensors.std, scale.std)

    def scaled(self, obs: Any, tensors: PolicyTensors | None = None) -> Any:
        """Return scaled observations, (…, *obs_shape): the network's inputs.

        Args:
            obs: raw observations.
            tensors: the scale, for a compiled function that takes it as an argument; None: the
                policy's own.
        """
        tensors = tensors or self.tensors
        if tensors.mean is None or tensors.std is None or tensors.clip is None:
            return obs.to(self._dtype)
        return scale_obs(obs, tensors.mean, tensors.std, tensors.clip)

    def draw(
        self, tensors: PolicyTensors, obs: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sample actions.

        Args:
            tensors: parameters and scale.
            obs: raw, (N, *obs_shape).
            noise: (N, K), one step of `host.draw_noise`.

        Returns:
            The actions, (N, *action_shape), log π(action), (N,), and V(obs), (N,).
        """
        return self.nets.draw(tensors.params, self.scaled(obs, tensors), noise)

    def value(self, tensors: PolicyTensors, obs: Tensor) -> Tensor:
        """Return V(obs), (T, N), from raw observations, (T, N, *obs_shape)."""
        flat = self.scaled(obs, tensors).flatten(0, 1)
        value = self.nets.outputs(tensors.params, flat)[1]
        assert value is not None
        return value.view(obs.shape[:2])
