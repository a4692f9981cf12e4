"""The acting policy, on the learner's device if its network acts through torch."""

from __future__ import annotations

from typing import Any

import torch

from hotloop.learner import Execution, ExecutionChoice, Learner, Mode
from hotloop.policies import ActingPolicy, Exploration, ObsScale
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.torch_acting import LearnerForward
from hotloop.training.options import AlgorithmOptions


def make_acting_policy(
    config: AlgorithmOptions,
    learner: Learner,
    nets: LearnedNetwork,
    params: torch.Tensor,
    *,
    obs_scale: ObsScale | None,
    exploration: Exploration | None = None,
    is_on_device: bool = False,
) -> ActingPolicy:
    """Return the policy that acts for environments on the host.

    The network runs on the learner's device if that is not the CPU, the network acts through torch,
    and this process steps the environments. Otherwise it runs on the host. It also runs on the host
    with `overlap`, with previously published parameters, while the device learns.

    Args:
        learner: the learner, which reports how acting is executed.
        nets: the acting network.
        params: its parameters in the learner's state, (P,).
        obs_scale: the scale of observations.
        exploration: how the policy explores.
        is_on_device: whether the environments step on the device, with a separate policy.
    """
    network, device = nets.network, learner.device
    snapshot = learner.publish(0, obs_scale)
    is_for_host = network.acts_without_torch or config.has_workers or is_on_device
    if is_for_host or device == torch.device("cpu") or config.overlap:
        return ActingPolicy(network, snapshot, exploration=exploration)
    choice = acting_choice(config.execution, device)

    def execute(function: Any, name: str, *, copies_outputs: bool = True) -> Execution:
        learner.executions.append(Execution(function, choice, name, copies_outputs=copies_outputs))
        return learner.executions[-1]

    num_rows = config.total_envs // config.num_groups
    forward = LearnerForward(nets, params, device, num_rows=num_rows, execute=execute)
    return ActingPolicy(network, snapshot, exploration=exploration, forward=forward)


def acting_choice(execution: Mode, device: torch.device) -> ExecutionChoice:
    """Return how acting on a device is executed: captured as a graph or operation by operation.

    Acting is not compiled. Convolutions are library calls either way, and compiling takes longer
    than it could save in most runs.
    """
    if device.type != "cuda" or execution in ("eager", "compile"):
        return ExecutionChoice(False, "operation by operation, since `execution` captures no graph")
    return ExecutionChoice(
        False,
        "a CUDA graph: the copy to the device, the network and the copy back are one launch",
        may_fall_back=execution == "auto",
        is_captured=True,
    )
