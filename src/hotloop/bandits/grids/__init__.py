"""Grids of bandits: one kind of agent in one kind of environment, over ranges of settings.

A grid stores its results in one SQLite file. After a stop or a kill it resumes from this file, and
later calls add more runs to the stored ones.
"""

from __future__ import annotations

from hotloop.bandits.grids.computation import GridProgress
from hotloop.bandits.grids.grid import Grid
from hotloop.bandits.grids.grid_table import GridRow, GridTable

__all__ = ["Grid", "GridProgress", "GridRow", "GridTable"]
