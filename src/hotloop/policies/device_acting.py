"""Acting in environments on the device: the twin of `ActingPolicy` on tensors.

It reads the learner's own vector of parameters. Only the scale of observations is published to it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.policies.acting import ActingPolicy
from hotloop.policies.learned import LearnedNetwork
from hotloop.policies.network import Network
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.replay.storage.device import Uploads


class Bound(NamedTuple):
    """The tensors that a policy reads. They change in place and are never replaced.

    Attributes:
        params: float32, (P,).
        mean, std: float32, obs_shape, of the scale; None: observations are not scaled.
        clip: float32, 0-d, bound on scaled observations.
    """

    params: Tensor
    mean: Tensor | None
    std: Tensor | None
    clip: Tensor | None


class DevicePolicy:
    """A network that acts on a device.

    Args:
        nets: the network that is learned.
        params: its parameters in the learner's state, (P,).
        host: the same policy on the host. It gets each snapshot too.

    Attributes:
        host: the policy on the host.
        nets: the network that is learned.
        bound: the tensors that the policy reads.

    Raises:
        ConfigError: the network is recurrent or has no value function.
    """

    def __init__(self, nets: LearnedNetwork, params: Tensor, host: ActingPolicy) -> None:
        if host.memory_size or not host.has_value:
            lacks = "a memory" if host.memory_size else "no value function"
            raise ConfigError(
                "environments on the device are acted in by networks with a value function and "
                f"without memory, got one with {lacks}: leave `memory` out, or train in an "
                "environment of Gymnasium"
            )
        self.nets, self.host = nets, host
        twin = self.network.layers.twin
        self._dtype = torch.float32 if twin else getattr(torch, self.network.obs_spec.dtype)
        self._uploads = Uploads(params.device)
        self.bound = Bound(params, None, None, None)
        scale = host.obs_scale
        if scale is not None:
            mean, std = torch.from_numpy(scale.mean), torch.from_numpy(scale.std)
            clip = torch.tensor(scale.clip, dtype=torch.float32)
            self.bound = Bound(params, *(x.to(params.device).clone() for x in (mean, std, clip)))

    @property
    def network(self) -> Network:
        """Return the network that acts."""
        return self.host.network

    def load(self, snapshot: PolicySnapshot) -> None:
        """Take the scale of observations from a snapshot; the parameters are the learner's."""
        self.host.load(snapshot)
        scale, bound = snapshot.obs_scale, self.bound
        if scale is not None and bound.mean is not None and bound.std is not None:
            with self._uploads as uploads:
                uploads.put("mean", bound.mean, scale.mean)
                uploads.put("std", bound.std, scale.std)

    def scaled(self, obs: Tensor, bound: Bound | None = None) -> Tensor:
        """Return scaled observations, (…, *obs_shape): the network's inputs.

        Args:
            obs: raw observations.
            bound: the scale, for a compiled function that takes it as an argument; None: the
                policy's own.
        """
        bound = bound or self.bound
        if bound.mean is None or bound.std is None or bound.clip is None:
            return obs.to(self._dtype)
        scaled = (obs.to(torch.float32) - bound.mean) / bound.std
        return scaled.clamp(-bound.clip, bound.clip)

    def draw(self, bound: Bound, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw actions.

        Args:
            bound: parameters and scale.
            obs: raw, (N, *obs_shape).
            noise: (N, K), one step of `nets.draw_noise`.

        Returns:
            The actions, (N, *action_shape), log π(action), (N,), and V(obs), (N,).
        """
        return self.nets.draw(bound.params, self.scaled(obs, bound), noise)

    def value(self, bound: Bound, obs: Tensor) -> Tensor:
        """Return V(obs), (T, N), from raw observations, (T, N, *obs_shape)."""
        flat = self.scaled(obs, bound).flatten(0, 1)
        value = self.nets.outputs(bound.params, flat)[1]
        assert value is not None
        return value.view(obs.shape[:2])
