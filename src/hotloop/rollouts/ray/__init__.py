"""Rollouts by actors of Ray, on one machine or many: whole fragments travel, never steps.

Import `hotloop.rollouts.ray.environments` where it is asked for: Ray takes 2.5 s to import.
"""
