"""Training on one GPU beside its prediction, within minutes."""
