"""Central inference: one process that acts for all workers, in batches.

`program` is what it runs; `stepper` is the workers' side, which steps one half of the environments
while the other half waits for its actions.
"""
