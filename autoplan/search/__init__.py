"""Finds the best plan: candidates, costs, an exact program for each, bounds and recipes."""
