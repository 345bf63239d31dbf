"""Runs a sharded module: collectives, local operators, data parallelism and the training step."""
