"""Analytical costs of training: pure functions of plain numbers, in seconds and bytes."""
