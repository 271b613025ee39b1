"""Measurements as ratios: what is ours and what it is compared with, in turn, in one run."""
