"""Predictions against published measurements: ``autoplan validate``."""
