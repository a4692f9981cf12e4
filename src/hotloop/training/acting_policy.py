"""The policy that collects: on the learner's device where its network acts through torch."""

from __future__ import annotations

from typing import Any

import torch

from hotloop.learner import Choice, Execution, Learner, Mode
from hotloop.policies import ActingPolicy, Exploration, ObsScale
from hotloop.policies.learned import LearnedNetwork
from hotloop.policies.torch_acting import LearnerForward


def make_acting_policy(
    config: Any,
    learner: Learner,
    nets: LearnedNetwork,
    params: torch.Tensor,
    *,
    obs_scale: ObsScale | None,
    exploration: Exploration | None = None,
    is_on_device: bool = False,
) -> ActingPolicy:
    """Return the policy that acts for environments on the host.

    Its network is computed on the learner's device if that is not the CPU, the network acts through
    torch, and environments are stepped in this process. It is computed on the host otherwise, and
    with `overlap`: there it acts by the parameters that were published before, while the device
    learns.

    Args:
        config: the run's configuration.
        learner: the learner. It reports how acting is executed.
        nets: the acting network.
        params: its parameters in the learner's state, (P,).
        obs_scale: scale of observations.
        exploration: how the policy explores.
        is_on_device: whether the environments step on the device, where another policy acts.
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


def acting_choice(execution: Mode, device: torch.device) -> Choice:
    """Return how acting on a device is executed: captured as a graph or operation by operation.

    It is not compiled. Convolutions are library calls either way, and compiling takes longer than
    it could save in most runs.

    Args:
        execution: the run's option.
        device: where the policy acts.
    """
    if device.type != "cuda" or execution in ("eager", "compile"):
        return Choice(False, "operation by operation, since `execution` captures no graph")
    return Choice(
        False,
        "a CUDA graph: the copy to the device, the network and the copy back are one launch",
        may_be_eager=execution == "auto",
        is_captured=True,
    )
