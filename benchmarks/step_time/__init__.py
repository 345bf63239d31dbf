"""Seconds and bytes of a training step: the emitted module beside PyTorch written by hand."""
