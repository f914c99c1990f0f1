"""Simulation: the product's own scheduler and router on a virtual clock, with ticks as long as measured ones.

Nothing is computed and nobody waits; it knows no load shapes and no reports.

A tick begins and ends as two events, so that nobody sees what has not happened yet.
"""
