"""What outlives a process: checkpoints by pieces of state, files of weights, and training data."""
