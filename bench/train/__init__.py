"""Trainings: speed, learning curves, start-up."""
