"""Benchmarks: what a step costs, where the time goes, and how that compares with the plain way on the same machine.

Every measurement alternates between processes, one running at a time, so that a busy or throttled machine slows
both sides alike, and reports the median of the ratios. ``unissl bench`` runs them.
"""
