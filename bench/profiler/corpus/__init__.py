"""A corpus of programs with planted causes: does a diagnosis name them in what it never saw?

See run.py for how to call it, plant.py for how a case is made.
"""
