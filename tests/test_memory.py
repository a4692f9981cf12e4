"""What is refused because it would not fit into memory, and how it is told."""

import pytest

from hotloop import kernel
from hotloop.errors import ConfigError
from hotloop.memory import in_units, need_memory


@pytest.mark.parametrize(
    ("size_bytes", "told"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1_599, "1.5 KiB"),
        (10 * 2**20, "10 MiB"),
        (18 * 2**30 + 1, "18 GiB"),
        (4_617_089_843_750, "4.1 TiB"),
        (10**30, "827,180 YiB"),
    ],
)
def test_sizes_in_units(size_bytes, told):
    assert in_units(size_bytes) == told


def test_what_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(kernel, "available_memory", lambda: 2**30)
    need_memory(2**30, "ten apples", "take five")
    message = "^ten apples take at least 1.0 TiB, and 1.0 GiB are free: take five$"
    with pytest.raises(ConfigError, match=message):
        need_memory(2**40, "ten apples", "take five")


def test_nothing_is_refused_where_free_memory_is_not_known(monkeypatch):
    monkeypatch.setattr(kernel, "available_memory", lambda: None)
    need_memory(2**60, "ten apples", "take five")


def test_small_sizes_are_not_asked_for(monkeypatch):
    monkeypatch.setattr(kernel, "available_memory", lambda: 1 / 0)
    need_memory(2**24, "ten apples", "take five")
    with pytest.raises(ZeroDivisionError):
        need_memory(2**24 + 1, "ten apples", "take five")
