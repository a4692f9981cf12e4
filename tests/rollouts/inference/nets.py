"""A network of a user's own that can be made in one process alone."""

import os

from tests.policies.nets import Net


class OnlyHere(Net):
    """Raises where it is made by another process than the one that the test runs in."""

    def __init__(self, *args):
        if os.environ["HOTLOOP_TEST_HOME"] != str(os.getpid()):
            raise RuntimeError("nowhere else")
        super().__init__(*args)
