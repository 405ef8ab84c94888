"""Benchmarks: what a step costs, where the time goes, and how that compares with plain PyTorch on the same machine.

Every measurement alternates between processes, one running at a time, so that a busy or throttled machine slows
both sides alike, and reports the median of the ratios. ``make bench`` runs all of them.
"""
