"""`python -m hotloop`."""

from __future__ import annotations

import os
import sys

# `python -m` searches the working directory first.
try:
    if sys.orig_argv[-len(sys.argv) - 1] == "-m" and sys.path[0] == os.getcwd():
        del sys.path[0]
except OSError:  # it was deleted, which the command reports
    pass

from hotloop.cli import main

if __name__ == "__main__":
    sys.exit(main())
