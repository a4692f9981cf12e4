"""Try hotloop on every supported version of Python, torch, NumPy and Gymnasium.

    python -m tests.matrix                            # every cell; an hour and 20 GB of downloads
    python -m tests.matrix --cells base-3.10 base-3.13
    python -m tests.matrix --store                    # and write bench/results/versions.json

A cell is a virtual environment with a wheel of this checkout and fixed versions (`cells.py`). The
same checks run in every cell (`checks.py`).
"""
