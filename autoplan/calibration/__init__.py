"""Corrects a profile by how long the steps of a plan really took."""
