"""A corpus of programs with planted causes, to measure diagnoses of unknown programs.

See run.py for the command line and plant.py for the cases.
"""
