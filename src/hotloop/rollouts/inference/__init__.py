"""Central inference: one process acts for all workers, in batches.

`server` is the inference process. `central_collector` is the workers' side, which steps one half of
the environments while the other half waits for its actions.
"""
