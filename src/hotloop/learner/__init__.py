"""What turns a fragment into better parameters: flat parameters, gradients, the optimizer.

An algorithm's update is a pure function of tensors, `update(state, batch, hyper) -> metrics`, that
changes `state` in place. Nothing here knows an algorithm's name.
"""

from __future__ import annotations

from hotloop.learner.execution import Choice, Compile, Execution, choose
from hotloop.learner.gradients import clip_grad_norm, value_and_grad
from hotloop.learner.metrics import Metrics
from hotloop.learner.normalizers import Normalizer
from hotloop.learner.optimizer import AdamState, adam_step
from hotloop.learner.parameters import ParameterLayout, move_towards
from hotloop.learner.threads import torch_threads

__all__ = [
    "AdamState",
    "Choice",
    "Compile",
    "Execution",
    "Metrics",
    "Normalizer",
    "ParameterLayout",
    "adam_step",
    "choose",
    "clip_grad_norm",
    "move_towards",
    "torch_threads",
    "value_and_grad",
]
