"""Learning on one GPU: eager, compiled, as a graph; replay and environments on the device."""
