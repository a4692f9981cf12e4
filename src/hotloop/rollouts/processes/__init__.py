"""Worker processes that step environments and act in them.

`pool` starts and replaces them, `rollout` collects fragments, `worker` is their program.
"""
