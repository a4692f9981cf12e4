"""Grids of bandits: one kind of agent in one kind of environment, over ranges of settings.

What is computed goes into one SQLite file, so a grid that was stopped, or killed, goes on where it
was, and more runs are added to what is there.
"""

from __future__ import annotations

from hotloop.sweeps.bandits.computing import GridProgress
from hotloop.sweeps.bandits.grid import Grid
from hotloop.sweeps.bandits.table import GridRow, GridTable

__all__ = ["Grid", "GridProgress", "GridRow", "GridTable"]
