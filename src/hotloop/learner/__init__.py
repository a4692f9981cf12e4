"""Learning: the state on a device, its updates, their execution, and the publishing of weights.

An update, `update(state, batch, noise, hyper) -> metrics`, is a function of tensors that changes
`state` in place. This package does not depend on the name of an algorithm.
"""

from __future__ import annotations

from hotloop.learner.execution import Execution, ExecutionChoice, Mode, choose
from hotloop.learner.gradients import clip_grad_norm, value_and_grad
from hotloop.learner.hyper import HyperParameters, Scalar
from hotloop.learner.learner import Learner, UpdateRule, choose_device
from hotloop.learner.metrics import Metrics
from hotloop.learner.normalizers import Normalizer
from hotloop.learner.optimizer import AdamState, adam_step
from hotloop.learner.parameters import call_with, flatten_parameters, move_towards
from hotloop.learner.threads import torch_threads
from hotloop.learner.updates import BoundUpdate
from hotloop.learner.value_scale import new_return_sums, scale_value

__all__ = [
    "AdamState",
    "BoundUpdate",
    "Execution",
    "ExecutionChoice",
    "HyperParameters",
    "Learner",
    "Metrics",
    "Mode",
    "Normalizer",
    "Scalar",
    "UpdateRule",
    "adam_step",
    "call_with",
    "choose",
    "choose_device",
    "clip_grad_norm",
    "flatten_parameters",
    "move_towards",
    "new_return_sums",
    "scale_value",
    "torch_threads",
    "value_and_grad",
]
