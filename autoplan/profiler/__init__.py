"""Measures the machine that it runs on and writes what the cost models read of it as a profile.

``schedule`` lists what to measure, ``measure`` takes the times on a ``bench``, ``fit_device`` and
``fit_links`` find the constants with which the cost models meet them, ``profile`` puts them into
the profile of a like machine, whose other values stay. Nothing is guessed: what could not be
measured is named.
"""
