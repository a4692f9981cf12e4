"""What would the program gain if one of its places were faster? Measured while it runs.

`places` finds the candidates in the samples, `experiment` delays them in turn while the program
runs, and `elasticity` computes the results.
"""
