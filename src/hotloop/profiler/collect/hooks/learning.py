"""torch's optimizers and backward passes, replay buffers of other libraries, loggers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hotloop.profiler.collect.hooks import wrapping
from hotloop.profiler.collect.hooks.wrapping import facts, wrap
from hotloop.timing import span


def _torch(module: ModuleType) -> None:
    facts["torch_threads"] = float(module.get_num_threads())


def _compiler(module: ModuleType) -> None:
    if hasattr(module, "is_compiling"):
        wrapping.is_compiling = module.is_compiling


def _optimizers(module: ModuleType) -> None:
    """By torch's own hooks, where it has them."""
    if not hasattr(module, "register_optimizer_step_pre_hook"):
        return
    torch = sys.modules["torch"]
    # The one that was entered is left: the Python recorder has another at every place.
    entered = threading.local()

    def before(*_: Any) -> None:
        if wrapping.is_compiling():
            return
        # Of the thread that learns: another's number of threads may be another.
        facts["torch_threads"] = float(torch.get_num_threads())
        entered.span = span("optimizer_step")
        entered.span.__enter__()

    def after(*_: Any) -> None:
        if hasattr(entered, "span") and not wrapping.is_compiling():
            entered.span.__exit__(None, None, None)

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _autograd(module: ModuleType) -> None:
    wrap(module, "backward", "backward")
    wrap(module, "grad", "backward")


def _method(owner: str, attribute: str, name: str) -> Callable[[ModuleType], None]:
    def callback(module: ModuleType) -> None:
        wrap(getattr(module, owner), attribute, name)

    return callback


CALLBACKS: dict[str, Callable[[ModuleType], None]] = {
    "torch": _torch,
    "torch.compiler": _compiler,
    "torch.optim.optimizer": _optimizers,
    "torch.autograd": _autograd,
    "torch.utils.tensorboard.writer": _method("SummaryWriter", "add_scalar", "logging"),
    "tensorboardX.writer": _method("SummaryWriter", "add_scalar", "logging"),
    "wandb.sdk.wandb_run": _method("Run", "log", "logging"),
    "torchrl.data.replay_buffers.replay_buffers": _method(
        "ReplayBuffer", "sample", "replay_sample"
    ),
    "tianshou.data.buffer.buffer_base": _method("ReplayBuffer", "sample", "replay_sample"),
}
