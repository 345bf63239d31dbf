"""Seconds of a run's step: kernels and messages, pass by pass, and what shows of them."""
