"""The profiler: what it finds, what it costs, and a corpus of programs."""
