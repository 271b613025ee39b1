"""Numerical kernels, by what they compute."""
