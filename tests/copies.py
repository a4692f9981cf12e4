"""Copies between the host and a device, and whether their host side is pinned.

A copy from or to memory that is not pinned makes the host wait, even with `non_blocking`, and
torch's synchronisation check does not report it.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.replay.storage import device as transfer

COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)
INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
# They make a tensor of Python's numbers, on the host first, where no dispatch mode sees it.
MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)


class UnpinnedCopies:
    """Lists copies between devices whose host side is not pinned.

    Args:
        is_pinned: whether a tensor of the host is pinned.

    Attributes:
        uploads: the names of operations that copied to the device.
        downloads: the names of operations that copied to the host.
    """

    def __init__(self, is_pinned=torch.Tensor.is_pinned):
        self._is_pinned = is_pinned
        self.uploads, self.downloads = [], []

    def note(self, name, source, target):
        if source.device.type == target.device.type:
            return
        if source.device.type == "cpu" and not self._is_pinned(source):
            self.uploads.append(name)
        elif target.device.type == "cpu" and not self._is_pinned(target):
            self.downloads.append(name)

    @contextmanager
    def listed(self):
        """List the copies of the body."""
        with ExitStack() as exits:
            exits.enter_context(_Dispatched(self))
            exits.enter_context(_Made(self))
            yield self


class _Dispatched(TorchDispatchMode):
    def __init__(self, copies):
        super().__init__()
        self._copies = copies

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if func in COPIES:
            target, source = args[:2]
            pairs = zip(target, source, strict=True) if isinstance(target, list) else [args[:2]]
            for target, source in pairs:
                self._copies.note(name, source, target)
        elif func is torch.ops.aten._to_copy.default:
            self._copies.note(name, args[0], result)
        elif func in INDEXED:
            for index in args[1]:
                if index is not None:
                    self._copies.note(name, index, args[0])
        return result


class _Made(TorchFunctionMode):
    def __init__(self, copies):
        super().__init__()
        self._copies = copies

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_new = func in MAKERS and not isinstance(args[0] if args else None, torch.Tensor)
        if is_new and result.device.type != "cpu":
            self._copies.uploads.append(func.__name__)
        return result


class PretendedPinning:
    """Pinned memory and marks for a machine without a GPU.

    Attributes:
        log: `set` and `wait` of marks, in order.
    """

    def __init__(self, monkeypatch):
        self._pinned, self.log = [], []  # the tensors stay, so that no other gets their address
        log = self.log

        class Mark:
            def __init__(self, device):
                pass

            def set(self):
                log.append("set")

            def wait(self):
                log.append("wait")

        monkeypatch.setattr(transfer, "Mark", Mark)
        monkeypatch.setattr(transfer, "pinned", self._make)

    def _make(self, shape, dtype):
        self._pinned.append(torch.empty(shape, dtype=dtype))
        return self._pinned[-1]

    def is_pinned(self, x):
        """Whether a tensor lies in such memory."""
        return any(
            x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() for y in self._pinned
        )

    def listed(self):
        """List the copies of the body that do not go through such memory."""
        return UnpinnedCopies(self.is_pinned).listed()
