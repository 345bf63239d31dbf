"""Analytical costs of training: pure functions of plain numbers, in seconds and bytes.

What is decided here: an operator costs its roofline plus a launch (``compute``); a collective costs
alpha-beta over two link tiers (``collectives``); part of the communication hides under compute
(``overlap``); a pipelined step costs what the simulation of its schedule says (``pipeline``);
weights, gradients and optimizer state cost fixed bytes a parameter (``memory``, ``optimizers``).
Constants are the profile's; where nothing was measured they are pessimistic, since a search finds
every optimistic corner.
"""
