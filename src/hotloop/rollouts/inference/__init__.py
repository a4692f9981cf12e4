"""Central inference: one process acts for all workers, in batches.

`batching` runs the network for all requests at once, here and in Ray's inference actors. `server`
is the inference process. `central_collector` is the workers' side, which steps one half of the
environments while the other half waits for its actions.
"""
