"""Worker processes that step environments and act in them.

`supervisor` starts and replaces them, `transport` moves their rows, `worker` is their program.
"""
