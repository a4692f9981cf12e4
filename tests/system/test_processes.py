import mmap

import numpy as np

from hotloop.system.processes import private_bytes, resident_bytes

SIZE = 64 * 2**20
CONTENT = b"1" * SIZE


def grown(before):
    """Memory that was taken since: private, and in all, in parts of `SIZE`."""
    return [
        (now - then) / SIZE
        for now, then in zip((private_bytes(), resident_bytes()), before, strict=True)
    ]


def test_memory_that_others_share_is_not_private():
    before = private_bytes(), resident_bytes()
    # Maps of its own: memory from the heap may be what somebody gave back before.
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(CONTENT)
        np.testing.assert_allclose(grown(before), (1, 1), atol=0.2)
        with mmap.mmap(-1, SIZE) as shared:  # anonymous, and shared with whom this process forks
            shared.write(CONTENT)
            np.testing.assert_allclose(grown(before), (1, 2), atol=0.2)
