"""Finds the best plan: operators' choices, their prices, and the whole decision over both."""
