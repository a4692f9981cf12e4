"""The profiler: its diagnoses, its overhead, and a corpus of programs."""
