"""Looks a model over before it is planned: what stops, limits or costs, by line of source."""
