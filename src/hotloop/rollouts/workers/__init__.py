"""Workers: processes that step environments and act in them by themselves.

`pool` starts and replaces them, `rollout` collects by them, `worker` is the program that each runs.
"""
