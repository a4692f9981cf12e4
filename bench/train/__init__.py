"""Trainings: their speed, what they learn, their start."""
