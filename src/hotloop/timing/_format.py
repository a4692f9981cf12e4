"""The file format of recordings, shared by both recorders and the reader.

A file is a header of 64 KiB, followed by segments, one for each concurrent thread. All numbers are
little-endian, all words 8 bytes.

    header    magic, version, flags, pid, parent, start, end, clock offset, component, host,
              boot id, checksum of a closed recording
    segment   words | node table | open starts | ring of events | totals A | totals B

* node: parent index, kind and name of a node of the thread's tree. Node 0 is the thread itself.
* open starts: one word per node, the start of its latest span. A node is open if that start is
  later than the start of its last ended span. So an entry writes one word, an exit none.
* event, 24 bytes: start, node, end. The end is written last and commits the event. The ring needs
  no counter: events since the last fold are in the slots after it whose end is not older than that
  of the fold. (A sequence number would take 8 bytes and 30 ns more.)
* totals: one row per node: count, total, min, max, start of the last ended span, histogram. There
  are two copies: a fold writes the idle copy and then flips the segment's `S_FOLDED` word, so a
  process killed in the middle of a fold loses nothing.

The C recorder writes times as int64 nanoseconds, the Python recorder as float64 seconds (flag
`FLOAT_TIMES`), because Python stores a float in half the time of an int. Totals are in nanoseconds
in both.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

Kind = Literal["work", "wait", "transfer"]
"""The kind of activity that a span times."""
KINDS: tuple[Kind, ...] = ("work", "wait", "transfer")
"""Every kind of span."""

MAGIC = b"hltiming"
VERSION = 1
SUFFIX = ".hlt"
FLOAT_TIMES = 1  # header flag: times in the ring are float64 seconds
PYTHON_RECORDER = 2  # header flag: written by the pure-Python recorder

HEADER_SIZE = 65536  # a valid offset of a memory map on every known system
# magic, version, flags, pid, parent pid, process start (ticks), start ns, end ns, wall − monotonic
HEADER = struct.Struct("<8sQQQQQQQq128s128s64s")
END_OFFSET = struct.calcsize("<8sQQQQQQ")
# CRC-32 of the header up to here and of all segments, with a flag. 0 in older recordings and in
# those that were not closed: their process is running or was killed.
CHECKSUM_OFFSET = 512
HAS_CHECKSUM = 1 << 32
ALIGNMENT = 65536

SEGMENT_MAGIC = int.from_bytes(b"hltsegm1", "little")
# Indices of words in a segment's head.
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

# Logarithmic histogram: 8 buckets per octave from 8 ns to 2^44 ns (4.9 hours). The float64 bits of
# a duration give its bucket: the exponent and the first three bits of the mantissa.
NUM_BUCKETS = 41 * 8
BUCKET_SHIFT = 49
BUCKET_BASE = (1023 + 3) << 3
# Indices of words in a row of totals. A bank begins with a head of the size of one row, whose first
# word is the earliest end of the last folded period.
T_COUNT, T_TOTAL, T_MIN, T_MAX, T_LAST_START = range(5)
T_HIST = 8
ROW_WORDS = T_HIST + NUM_BUCKETS


class SegmentLayout(NamedTuple):
    """The capacities of a segment, and the offsets of its parts and its size in bytes."""

    ring_capacity: int
    node_capacity: int
    opens: int
    ring: int
    bank_a: int
    bank_b: int
    size: int


def segment_layout(ring_capacity: int, node_capacity: int) -> SegmentLayout:
    """Return the layout of a segment with the given capacities."""
    opens = SEGMENT_HEAD + node_capacity * NODE.size
    ring = opens + node_capacity * 8
    bank_a = ring + ring_capacity * EVENT_SIZE
    bank_size = (node_capacity + 1) * ROW_WORDS * 8
    bank_b = bank_a + bank_size
    size = -(-(bank_b + bank_size) // ALIGNMENT) * ALIGNMENT
    return SegmentLayout(ring_capacity, node_capacity, opens, ring, bank_a, bank_b, size)


MAIN = segment_layout(32768, 256)  # 2.2 MiB: the main thread
OTHER = segment_layout(8192, 128)  # 0.9 MiB: any other thread


def bucket_bounds(bucket: int) -> tuple[float, float]:
    """Return the lower and upper bound of a histogram bucket, in nanoseconds."""
    octave, eighth = divmod(bucket, 8)
    lower = float(1 << (octave + 3)) * (1 + eighth / 8)
    return lower, lower + float(1 << octave)


def clip_utf8(text: str, size: int) -> bytes:
    """Encode `text` as UTF-8, cut at a character boundary to at most `size` bytes."""
    encoded = text.encode("utf-8", "replace")
    return encoded if len(encoded) <= size else encoded[:size].decode("utf-8", "ignore").encode()
