"""The collector, which records inside the profiled program and writes files.

It must not load the code that reads records. It uses only the standard library until the program
itself has imported NumPy.
"""
