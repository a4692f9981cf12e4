"""The layout of a recording, shared by both recorders and the reader.

A file is one header of 64 KiB and then segments, one for each thread that ran at the same time as
the others. All numbers are little-endian, all words 8 bytes.

    header    magic, version, flags, pid, parent, start, end, clock offset, component, host, boot id
    segment   words | node table | open starts | ring of events | totals A | totals B

* node: parent index, kind and name of one place in the thread's tree; node 0 is the thread itself.
* open starts: one word a node, the start of its latest span. A node is open if that start is later
  than the start of the last span of it that ended: so entering writes one word, leaving none.
* event, 24 bytes: start, node, end. The end is written last and commits the event. Its position in
  the ring needs no counter: events since the last fold are the slots behind it whose end is not
  older than the fold's. (The first sketch had a sequence number: 8 bytes and 30 ns more.)
* totals: one row a node: count, total, min, max, start of the last ended span, histogram. They
  exist twice: a fold writes the idle one and then flips the segment's `FOLDED` word, so a process
  killed in the middle of a fold loses nothing.

The C recorder writes times as int64 nanoseconds, the Python one as float64 seconds (flag
`FLOAT_TIMES`): storing a float costs half of what storing an int does there. Totals are
nanoseconds in either.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

Kind = Literal["work", "wait", "transfer"]
"""What a span does."""
KINDS: tuple[Kind, ...] = ("work", "wait", "transfer")
"""Every kind of span."""

MAGIC = b"hltiming"
VERSION = 1
SUFFIX = ".hlt"
FLOAT_TIMES = 1  # header flag: times in the ring are float64 seconds
PYTHON_RECORDER = 2  # header flag: written by the pure-Python recorder

HEADER_SIZE = 65536  # what every system we know accepts as the offset of a map
# magic, version, flags, pid, parent pid, process start (ticks), start ns, end ns, wall − monotonic
HEADER = struct.Struct("<8sQQQQQQQq128s128s64s")
END_OFFSET = struct.calcsize("<8sQQQQQQ")
ALIGNMENT = 65536

SEGMENT_MAGIC = int.from_bytes(b"hltsegm1", "little")
# Words of a segment's head.
S_MAGIC, S_SIZE, S_RING, S_NODES, S_STATE, S_NUM_NODES, S_FOLDED = range(7)
S_ATTACHED, S_LIVED, S_NUM_THREADS, S_IDENT, S_UNNAMED = range(7, 12)
THREAD_NAME_OFFSET, THREAD_NAME_SIZE = 256, 128
SEGMENT_HEAD = 512
LIVE, ENDED = 1, 2

NODE = struct.Struct("<qqH110s")  # parent, kind, length of the name, name: 128 bytes
NODE_NAME_SIZE = 110
EVENT_SIZE = 24
PERIOD = 4096  # events between two folds; a ring holds at least two periods
MAX_DEPTH = 64
OVERFLOW = "(more spans)"

# Logarithmic histogram: 8 buckets an octave from 8 ns to 2^44 ns (4.9 hours). The bucket of a
# duration is read off its float64 bits: exponent and the first three bits of the mantissa.
NUM_BUCKETS = 41 * 8
BUCKET_SHIFT = 49
BUCKET_BASE = (1023 + 3) << 3
# Words of a row of totals; a bank begins with one such row's worth of head, its first word the
# earliest end of the last folded period.
T_COUNT, T_TOTAL, T_MIN, T_MAX, T_LAST_START = range(5)
T_HIST = 8
ROW_WORDS = T_HIST + NUM_BUCKETS


class Layout(NamedTuple):
    """Where the parts of a segment lie, in bytes from its beginning."""

    ring_capacity: int
    node_capacity: int
    opens: int
    ring: int
    bank_a: int
    bank_b: int
    size: int


def layout(ring_capacity: int, node_capacity: int) -> Layout:
    """The layout of a segment for so many events and nodes."""
    opens = SEGMENT_HEAD + node_capacity * NODE.size
    ring = opens + node_capacity * 8
    bank_a = ring + ring_capacity * EVENT_SIZE
    bank_size = (node_capacity + 1) * ROW_WORDS * 8
    bank_b = bank_a + bank_size
    size = -(-(bank_b + bank_size) // ALIGNMENT) * ALIGNMENT
    return Layout(ring_capacity, node_capacity, opens, ring, bank_a, bank_b, size)


MAIN = layout(32768, 256)  # 2.2 MiB: the main thread
OTHER = layout(8192, 128)  # 0.9 MiB: any other


def bucket_bounds(bucket: int) -> tuple[float, float]:
    """Lower and upper bound of a histogram bucket, in nanoseconds."""
    octave, part = divmod(bucket, 8)
    lower = float(1 << (octave + 3)) * (1 + part / 8)
    return lower, lower + float(1 << octave)


def clip_utf8(text: str, size: int) -> bytes:
    """`text` as UTF-8, cut at a character's boundary to at most `size` bytes."""
    encoded = text.encode("utf-8", "replace")
    return encoded if len(encoded) <= size else encoded[:size].decode("utf-8", "ignore").encode()
