"""A custom network that only one process can construct."""

import os

from tests.policies.nets import Net


class OnlyHere(Net):
    """Raises if it is constructed outside of the test's process."""

    def __init__(self, *args):
        if os.environ["HOTLOOP_TEST_HOME"] != str(os.getpid()):
            raise RuntimeError("nowhere else")
        super().__init__(*args)
