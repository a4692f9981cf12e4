"""The collector: it runs within the profiled program, records, and leaves files.

What records must not load what reads, and takes the standard library alone until the program has
imported NumPy itself.
"""
