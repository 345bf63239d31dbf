"""Families of models by ways to train them in parallel; every cell is compared with one device."""
