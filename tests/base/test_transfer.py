"""Transfers between the host and a stand-in for a GPU."""

import numpy as np
import pytest
import torch

from hotloop.base import transfer


@pytest.fixture
def staged(monkeypatch):
    """Log uploads and downloads as on a GPU, with unpinned memory."""
    log = []

    class DeviceEvent:
        def __init__(self, device):
            self.is_set = False

        def record(self):
            self.is_set = True
            log.append(("record", self))

        def wait(self):
            if self.is_set:
                log.append(("wait", self))

    def pinned(shape, dtype):
        log.append(("pinned", tuple(shape)))
        return torch.empty(shape, dtype=dtype)

    monkeypatch.setattr(transfer, "pinned", pinned)
    monkeypatch.setattr(transfer, "DeviceEvent", DeviceEvent)
    return log


def test_uploads_wait_for_the_last_use_of_their_staging_block(staged):
    uploads = transfer.Uploads(torch.device("meta"))
    target = torch.zeros(3)
    for value in range(4):
        with uploads:
            uploads.put("x", target, np.full(3, value, np.float32))
        assert target.tolist() == [value] * 3
    kinds = [kind for kind, _ in staged]
    assert kinds == ["pinned", "record", "pinned", "record", *2 * ["wait", "record"]]
    marks = [mark for kind, mark in staged if kind != "pinned"]
    assert marks[0] is marks[2] is marks[3]
    assert marks[1] is marks[4] is marks[5]
    assert marks[0] is not marks[1]


def test_larger_arrays_get_larger_staging_memory(staged):
    uploads, target = transfer.Uploads(torch.device("meta")), torch.zeros(9)
    for size in (2, 2, 9, 9, 4, 4):
        with uploads:
            uploads.put("x", target[:size], np.arange(size, dtype=np.float32))
        assert target[:size].tolist() == list(range(size))
    assert [shape for kind, shape in staged if kind == "pinned"] == [(2,), (2,), (9,), (9,)]


def test_each_dtype_has_its_own_memory(staged):
    uploads = transfer.Uploads(torch.device("meta"))
    for dtype in (np.uint8, np.uint8, np.float32, np.float32) * 2:
        value = 300.5 if dtype == np.float32 else 200
        array = np.full(2, value, dtype)
        target = torch.from_numpy(np.zeros_like(array))
        with uploads:
            uploads.put("x", target, array)
        assert target.tolist() == [value] * 2


def test_downloads_of_each_dtype_have_their_own_memory(staged):
    downloads = transfer.Downloads(torch.device("meta"))
    for value in (200, 300.5, 200, 300.5):
        dtype = torch.float32 if value == 300.5 else torch.uint8
        host = downloads.read(downloads.start(torch.full((2,), value, dtype=dtype)))
        assert host.tolist() == [value] * 2


def test_downloads_wait_for_their_copy(staged):
    downloads = transfer.Downloads(torch.device("meta"))
    first = downloads.start(torch.tensor([1.0, 2.0]))
    second = downloads.start(torch.tensor([3.0, 4.0]))
    assert [kind for kind, _ in staged] == ["pinned", "record", "pinned", "record"]
    assert downloads.read(first).tolist() == [1.0, 2.0]
    assert staged[-1] == ("wait", staged[1][1])
    third = downloads.start(torch.tensor([5.0, 6.0]))  # in the memory of the first one
    assert [kind for kind, _ in staged].count("pinned") == 2
    assert downloads.read(second).tolist() == [3.0, 4.0]
    assert downloads.read(third).tolist() == [5.0, 6.0]


def test_inbox_writes_one_block_while_the_other_is_read(staged, monkeypatch):
    """A block is written again only after its own copy has ended."""
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *sizes, device, **options: zeros(*sizes, **options))
    inbox = transfer.Inbox(
        {"a": ((3,), np.dtype(np.uint8)), "b": ((2, 2), np.dtype(np.float32))},
        torch.device("meta"),
    )
    for value in range(5):
        inbox.arrays["a"][:], inbox.arrays["b"][:] = value, value / 2
        inbox.send()
        assert inbox.tensors["a"].tolist() == 3 * [value]
        assert inbox.tensors["b"].tolist() == 2 * [2 * [value / 2]]
    kinds = [kind for kind, _ in staged]
    assert kinds == ["pinned", "pinned", "record", *4 * ["record", "wait"]]
    marks = [mark for kind, mark in staged if kind != "pinned"]
    assert marks[0] is marks[2] is marks[3] is marks[6] is marks[7]
    assert marks[1] is marks[4] is marks[5] is marks[8]


def test_arrays_and_tensors_change_places():
    array = np.arange(3.0)
    tensor = transfer.to_device(array, "cpu")
    assert isinstance(tensor, torch.Tensor)
    assert transfer.to_device(array, None) is array
    assert transfer.to_host(array) is array
    np.testing.assert_array_equal(transfer.to_host(tensor.requires_grad_()), array)
