"""autoplan: plans, explains and runs the parallel training of PyTorch models."""
