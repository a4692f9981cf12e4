"""Try hotloop on every supported version of Python, torch, NumPy and Gymnasium.

    python -m bench matrix                            # every cell; an hour, 10 GB of downloads
    python -m bench matrix --cells base-3.10 base-3.13
    python -m bench matrix --store                    # and write bench/results/versions.json

A cell is a virtual environment with a wheel of this checkout and fixed versions (`cells.py`). The
same checks run in every cell (`checks.py`).
"""
