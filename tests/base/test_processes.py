import mmap

import numpy as np

from hotloop.base.processes import private_bytes, resident_bytes

SIZE = 64 * 2**20
CONTENT = b"1" * SIZE


def memory_growth(before):
    """Return the growth of private and resident memory, in units of `SIZE`."""
    return [
        (current - previous) / SIZE
        for current, previous in zip((private_bytes(), resident_bytes()), before, strict=True)
    ]


def test_shared_memory_is_not_private():
    before = private_bytes(), resident_bytes()
    # Use new mappings: reused heap memory would hide the growth.
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as private:
        private.write(CONTENT)
        np.testing.assert_allclose(memory_growth(before), (1, 1), atol=0.2)
        with mmap.mmap(-1, SIZE) as shared:  # anonymous, shared with forks of this process
            shared.write(CONTENT)
            np.testing.assert_allclose(memory_growth(before), (1, 2), atol=0.2)
