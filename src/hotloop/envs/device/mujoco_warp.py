"""Models of MuJoCo that MuJoCo Warp steps, as tensors in its own memory.

    class Reach(MujocoWarp):
        def observation(self):
            return torch.cat([self.qpos, self.qvel], -1)

        def outcome(self, action):
            return -self.qpos.square().sum(-1), torch.zeros_like(self.time, dtype=torch.bool)

    def make(num_envs, device):
        return SimulatedVectorEnv(Reach("reach.xml", num_envs, device, obs_size=4))

and `hotloop train ppo --env-id my_tasks:make`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.envs.device.factory import missing_library
from hotloop.envs.device.protocol import Tensors
from hotloop.envs.device.specs import box_actions, numbers
from hotloop.errors import ConfigError

try:
    import mujoco  # pyright: ignore[reportMissingImports]
    import mujoco_warp  # pyright: ignore[reportMissingImports]
    import warp  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise missing_library("hotloop.envs.device.mujoco_warp", error, "mujoco-warp") from error

# All that MuJoCo's next step depends on.
_STATE = ("qpos", "qvel", "act", "ctrl", "qacc_warmstart", "time", "mocap_pos", "mocap_quat")


class MujocoWarp(ABC):
    """N copies of a model; a task is a subclass, see the module and `Simulation`.

    Args:
        model: a `mujoco.MjModel`, or the path of an XML file.
        num_envs: N.
        device: where the tensors are.
        obs_size: how many numbers are observed.
        frame_skip: the physics' steps in a step.
        max_episode_steps: after which an episode is truncated; None: it never is.
        first_spread: an episode begins with positions and speeds that lie by at most so much from
            the model's own and from 0.
        **sizes: of `mujoco_warp.make_data`, such as `nconmax` and `njmax`.

    Attributes:
        model: the `mujoco.MjModel`.
        data: what MuJoCo Warp steps; `warp.to_torch` makes tensors of its other fields.
        qpos, qvel, ctrl: float32, (N, nq), (N, nv), (N, nu), to be read and written in place.
        time: float32, (N,), in seconds.

    Raises:
        ConfigError: a number is not positive, or the model has no actuator.
    """

    def __init__(
        self,
        model: Any,
        num_envs: int,
        device: torch.device,
        *,
        obs_size: int,
        frame_skip: int = 1,
        max_episode_steps: int | None = 1_000,
        first_spread: float = 0.01,
        **sizes: int,
    ) -> None:
        for name, number in (("obs_size", obs_size), ("frame_skip", frame_skip)):
            if number < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {number}")
        models: Any = mujoco
        self.model = models.MjModel.from_xml_path(model) if isinstance(model, str) else model
        if not self.model.nu:
            raise ConfigError("a model must have actuators to act by, got none: add some")
        self.num_envs, self.device = num_envs, device
        self.max_episode_steps = max_episode_steps
        self._frame_skip, self._first_spread = frame_skip, first_spread
        warp.init()
        self._warp_device = warp.device_from_torch(device)
        with warp.ScopedDevice(self._warp_device):
            self._put = mujoco_warp.put_model(self.model)
            self.data = mujoco_warp.make_data(self.model, nworld=num_envs, **sizes)
        self._tensors = {name: warp.to_torch(getattr(self.data, name)) for name in _STATE}
        self.qpos, self.qvel = self._tensors["qpos"], self._tensors["qvel"]
        self.ctrl, self.time = self._tensors["ctrl"], self._tensors["time"]
        self._first_qpos = torch.tensor(self.model.qpos0, dtype=torch.float32, device=device)
        self._graph: Any = None
        self.obs_spec = numbers(obs_size)
        limited = self.model.actuator_ctrllimited.astype(bool)
        low, high = self.model.actuator_ctrlrange.T
        low, high = np.where(limited, low, -np.inf), np.where(limited, high, np.inf)
        self.action_spec = box_actions(low, high, (self.model.nu,))

    @property
    def num_uniform(self) -> int:
        """U: one for each position and each speed."""
        return self.model.nq + self.model.nv

    @abstractmethod
    def observation(self) -> Tensor:
        """See `Simulation`."""

    @abstractmethod
    def outcome(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """See `Simulation`."""

    def begin(self, which: Tensor, uniform: Tensor) -> None:
        """See `Simulation`. Fields that follow from the state are as they were until a step.

        Who observes such (`xpos`, sensors) overrides this, and calls `forward` after it.
        """
        nearby = self._first_spread * (2.0 * uniform - 1.0)
        first = {
            "qpos": self._first_qpos + nearby[:, : self.model.nq],
            "qvel": nearby[:, self.model.nq :],
        }
        for name, x in self._tensors.items():
            if name.startswith("mocap"):
                continue
            rows = which.view(-1, *[1] * (x.ndim - 1))
            x.copy_(torch.where(rows, first.get(name, torch.zeros_like(x)), x))

    def advance(self, action: Tensor) -> None:
        """See `Simulation`."""
        self.ctrl.copy_(action)
        if self.device.type == "cpu":
            self._step()
            return
        if self._graph is None:
            self._graph = self._captured()
        # Where torch's work is, so that one comes after the other.
        warp.capture_launch(self._graph, stream=self._torch_stream())

    def forward(self) -> None:
        """Compute what follows from positions and speeds, without a step."""
        if self.device.type == "cpu":
            mujoco_warp.forward(self._put, self.data)
            return
        with warp.ScopedDevice(self._warp_device), warp.ScopedStream(self._torch_stream()):
            mujoco_warp.forward(self._put, self.data)

    def tensors(self) -> Tensors:
        """See `Simulation`."""
        return self._tensors

    def _captured(self) -> Any:
        """Return a step as one graph: it is hundreds of launches; nothing has changed by it.

        On Warp's own stream: torch's first one can't be captured.
        """
        kept = {name: x.clone() for name, x in self._tensors.items()}
        torch.cuda.synchronize(self.device)
        with warp.ScopedDevice(self._warp_device):
            self._step()  # kernels are compiled before anything is captured
            warp.synchronize_device(self._warp_device)
            with warp.ScopedCapture() as capture:
                self._step()
        for name, x in kept.items():
            self._tensors[name].copy_(x)
        return capture.graph

    def _torch_stream(self) -> Any:
        return warp.stream_from_torch(torch.cuda.current_stream(self.device))

    def _step(self) -> None:
        for _ in range(self._frame_skip):
            mujoco_warp.step(self._put, self.data)
