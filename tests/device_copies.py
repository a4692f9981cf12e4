"""Copies between the host and a device whose host side is not pinned.

The host waits for a copy from or to such memory, even with `non_blocking`, and torch's
synchronization check does not report it.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.base import transfer

COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
# They build a tensor from Python numbers on the host first, where no dispatch mode sees it.
CONSTRUCTORS = (torch.tensor, torch.as_tensor, torch.asarray)


class UnpinnedCopies:
    """A list of copies between devices whose host side is not pinned.

    Args:
        is_pinned: function that returns whether a host tensor is pinned.

    Attributes:
        uploads: names of operations that copied to the device.
        downloads: names of operations that copied to the host.
    """

    def __init__(self, is_pinned=torch.Tensor.is_pinned):
        self._is_pinned = is_pinned
        self.uploads, self.downloads = [], []

    def record(self, name, source, target):
        if source.device.type == target.device.type:
            return
        if source.device.type == "cpu" and not self._is_pinned(source):
            self.uploads.append(name)
        elif target.device.type == "cpu" and not self._is_pinned(target):
            self.downloads.append(name)

    @contextmanager
    def listed(self):
        """List the copies within a `with` block."""
        with ExitStack() as exits:
            exits.enter_context(_DispatchedCopies(self))
            exits.enter_context(_ConstructorCopies(self))
            yield self


class _DispatchedCopies(TorchDispatchMode):
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
                self._copies.record(name, source, target)
        elif func is torch.ops.aten._to_copy.default:
            self._copies.record(name, args[0], result)
        elif func in INDEXING:
            for index in args[1]:
                if index is not None:
                    self._copies.record(name, index, args[0])
        return result


class _ConstructorCopies(TorchFunctionMode):
    def __init__(self, copies):
        super().__init__()
        self._copies = copies

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_new = func in CONSTRUCTORS and not isinstance(args[0] if args else None, torch.Tensor)
        if is_new and result.device.type != "cpu":
            self._copies.uploads.append(func.__name__)
        return result


class FakePinning:
    """Pinned memory and events for a machine without a GPU.

    Attributes:
        log: `record` and `wait` of events, in order.
    """

    def __init__(self, monkeypatch):
        self._pinned, self.log = [], []  # keeps the tensors, so that no other gets their address
        log = self.log

        class DeviceEvent:
            def __init__(self, device):
                pass

            def record(self):
                log.append("record")

            def wait(self):
                log.append("wait")

        monkeypatch.setattr(transfer, "DeviceEvent", DeviceEvent)
        monkeypatch.setattr(transfer, "pinned", self._make)

    def _make(self, shape, dtype):
        self._pinned.append(torch.empty(shape, dtype=dtype))
        return self._pinned[-1]

    def is_pinned(self, x):
        """Return whether a tensor lies in such memory."""
        return any(
            x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() for y in self._pinned
        )

    def listed(self):
        """List the copies within a `with` block that do not use such memory."""
        return UnpinnedCopies(self.is_pinned).listed()
