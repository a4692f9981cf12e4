"""Measurements and forecasts that choose how many workers collect, and which process acts."""
