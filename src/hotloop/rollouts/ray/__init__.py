"""Rollouts by Ray actors on one or several machines, which send whole fragments, never steps.

Importing `hotloop.rollouts.ray.environments` takes 2.5 s, so import it only if it is needed.
"""
