"""The last metrics in the files of trackers.

A tracker writes with a delay of several seconds. So its files lack the last metrics of a killed
run. Both libraries frame their records, and a record at the end of the file may be cut.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hotloop.base.files import open_regular, read_regular

# Number of last records to search. An iteration has fewer.
_LAST_EVENTS = 2_000
_FIRST_EVENTS = 5
_BLOCK = 32_768  # bytes of a block of LevelDB's log format


def last_tensorboard_step(directory: Path, tag: str) -> int:
    """Return the last step with a tag in TensorBoard's files, without purged ones, or 0."""
    messages: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
    last = 0
    for path in sorted(directory.glob("events.out.tfevents.*")):
        steps = [0]
        with contextlib.suppress(OSError), open_regular(path) as file:
            places = list(_event_places(file))
            for start, size in (*places[:_FIRST_EVENTS], *places[_FIRST_EVENTS:][-_LAST_EVENTS:]):
                file.seek(start)
                event = messages.Event()
                with contextlib.suppress(Exception):  # the file is damaged
                    event.ParseFromString(file.read(size))
                # The start of a writer purges its step and later ones.
                if event.session_log.status == messages.SessionLog.START:
                    last = min(last, event.step - 1)
                if any(value.tag == tag for value in event.summary.value):
                    steps.append(event.step)
        last = max(last, *steps)
    return last


def last_wandb_step(directory: Path, run_id: str) -> int:
    """Return the last `_step` in the files of a W&B run, or 0."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    last = 0
    for path in directory.glob(f"*run-*/run-{run_id}.wandb"):
        with contextlib.suppress(Exception):  # the file is damaged: nothing after it can be read
            for content in _wandb_records(read_regular(path)):
                record = messages.Record()
                record.ParseFromString(content)
                last = max(last, record.history.step.num)
    return last


def _event_places(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield the offset and the size of each event: length, checksum, content, checksum."""
    end = os.fstat(file.fileno()).st_size
    position = 0
    while position + 12 <= end:
        file.seek(position)
        (size,) = struct.unpack("<Q", file.read(8))
        if position + 16 + size > end:
            return
        yield position + 12, size
        position += 16 + size


def _wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file: LevelDB's log format after a header of 7 bytes."""
    position, parts = 7, b""
    while position + 7 <= len(content):
        room = _BLOCK - position % _BLOCK
        if room < 7:  # a header does not fit
            position += room
            continue
        size, kind = struct.unpack_from("<HB", content, position + 4)
        parts += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a complete record, or its last part
            yield parts
            parts = b""
