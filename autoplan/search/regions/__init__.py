"""Regions of the model (a block, or a part of what is outside blocks) and the ways to run each."""
