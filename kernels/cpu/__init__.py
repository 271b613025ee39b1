"""The kernels for CPUs, compiled by Numba. Importing this package imports Numba; `fbompi.kernels` alone does not."""
