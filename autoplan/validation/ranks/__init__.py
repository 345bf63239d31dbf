"""What one rank of a run holds: layers, weights, gradients, optimizer state."""
