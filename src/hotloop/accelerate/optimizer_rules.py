"""One step of torch's optimizers as a function of flat vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotloop.accelerate.acceleration import Unsupported
from hotloop.learner import AdamState, Scalar, adam_step


class OptimizerRule(NamedTuple):
    """An optimizer's step and the names of its vectors in `optimizer.state`.

    Attributes:
        moments: the names, such as "exp_avg".
        settings: the numbers of the optimizer's group, without the learning rate. The step is made
            for these. If they change, make a new rule.
        step: `step(params, grad, moments, steps, learning_rate, active)` changes its vectors in
            place. `active` is a bool tensor, 0-d: if False, nothing changes; or None.
    """

    moments: tuple[str, ...]
    settings: dict[str, Any]
    step: Callable[[Tensor, Tensor, dict[str, Tensor], Tensor, Scalar, Tensor | None], None]


def optimizer_settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each group of an optimizer, without parameters and learning rate."""
    return [
        {name: x for name, x in group.items() if name not in ("params", "lr", "initial_lr")}
        for group in optimizer.param_groups
    ]


def optimizer_rule(optimizer: torch.optim.Optimizer) -> OptimizerRule:
    """Return the step of an optimizer.

    Raises:
        Unsupported: the optimizer's class or one of its options is not supported.
    """
    kind = type(optimizer)
    if kind not in _RULES:
        *names, last = (x.__name__ for x in _RULES)
        raise Unsupported(f"its optimizer is {kind.__name__}, not {', '.join(names)} or {last}")
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    if "step" in vars(optimizer) or any(hooks):
        raise Unsupported("its optimizer's step was replaced or has hooks")
    groups = optimizer_settings(optimizer)
    if len(groups) != 1:
        raise Unsupported(f"its optimizer has {len(groups)} groups of parameters, not one")
    settings = groups[0]
    for name in ("amsgrad", "maximize", "centered", "momentum", "differentiable"):
        if settings.get(name):
            raise Unsupported(f"its optimizer's {name} is {settings[name]}")
    return _RULES[kind](settings)


def _adam_rule(settings: dict[str, Any]) -> OptimizerRule:
    """Return the rule of Adam, or of AdamW, whose weight decay is decoupled."""
    is_decoupled = settings.get("decoupled_weight_decay", False)
    beta1, beta2 = map(float, settings["betas"])
    eps, decay = float(settings["eps"]), float(settings["weight_decay"])

    def step(
        params: Tensor,
        grad: Tensor,
        moments: dict[str, Tensor],
        steps: Tensor,
        learning_rate: Scalar,
        active: Tensor | None,
    ) -> None:
        if decay and is_decoupled:
            shrunk = params * (1.0 - learning_rate * decay)
            params.copy_(shrunk if active is None else torch.where(active, shrunk, params))
        elif decay:
            grad = grad + decay * params
        # The steps of all parameters are equal, so the formula needs one of them.
        count = steps[0].clone()
        adam_step(
            params,
            grad,
            AdamState(moments["exp_avg"], moments["exp_avg_sq"], count),
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            active=active,
        )
        steps.copy_(count.expand_as(steps))

    return OptimizerRule(("exp_avg", "exp_avg_sq"), settings, step)


def _adamw_rule(settings: dict[str, Any]) -> OptimizerRule:
    return _adam_rule({**settings, "decoupled_weight_decay": True})


def _rmsprop_rule(settings: dict[str, Any]) -> OptimizerRule:
    """Return the rule of RMSprop, which adds ε after the root."""
    alpha, eps = float(settings["alpha"]), float(settings["eps"])
    decay = float(settings["weight_decay"])

    def step(
        params: Tensor,
        grad: Tensor,
        moments: dict[str, Tensor],
        steps: Tensor,
        learning_rate: Scalar,
        active: Tensor | None,
    ) -> None:
        if decay:
            grad = grad + decay * params
        square = moments["square_avg"]
        new_square = square * alpha + grad * grad * (1.0 - alpha)
        change = learning_rate * grad / (new_square.sqrt() + eps)
        if active is not None:
            new_square = torch.where(active, new_square, square)
            change = torch.where(active, change, 0.0)
        square.copy_(new_square)
        params.sub_(change)
        steps.add_(1.0 if active is None else active.to(torch.float32))

    return OptimizerRule(("square_avg",), settings, step)


_RULES: dict[type, Callable[[dict[str, Any]], OptimizerRule]] = {
    torch.optim.Adam: _adam_rule,
    torch.optim.AdamW: _adamw_rule,
    torch.optim.RMSprop: _rmsprop_rule,
}
