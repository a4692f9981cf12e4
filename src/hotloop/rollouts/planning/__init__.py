"""Measurements and forecasts of the speed of collecting, and what limits it."""
