"""Live bytes of single ranks of large plans, counted on fake tensors, beside the estimate."""
