"""Measured gains: how much faster the program would be if one of its places were faster.

`places` finds the candidates in the samples, `experiment` delays them in turn while the program
runs, and `elasticity` computes the results.
"""
