import mmap

import numpy as np

from hotloop.system.processes import private_bytes, resident_bytes

SIZE = 64 * 2**20


def grown(before):
    """Memory that was taken since: private, and in all, in parts of `SIZE`."""
    return [
        (now - then) / SIZE
        for now, then in zip((private_bytes(), resident_bytes()), before, strict=True)
    ]


def test_memory_that_others_share_is_not_private():
    before = private_bytes(), resident_bytes()
    own = np.ones(SIZE, np.uint8)
    np.testing.assert_allclose(grown(before), (1, 1), atol=0.2)
    with mmap.mmap(-1, SIZE) as shared:  # anonymous, and shared with whom this process forks
        shared.write(own)
        np.testing.assert_allclose(grown(before), (1, 2), atol=0.2)
