"""`python -m bench.corpus …` is `python -m bench corpus …`."""

import sys

from bench.corpus import main

if __name__ == "__main__":
    sys.exit(main())
