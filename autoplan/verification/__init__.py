"""Runs a plan's program on processes of this machine and compares it with one device.

What is too large is cut down first, with the plan's structure kept (``cut``); the ranks are gloo
processes (``processes``), each of which runs the runtime as it is, and compares its own pieces
(``runtime.comparison``).
"""
