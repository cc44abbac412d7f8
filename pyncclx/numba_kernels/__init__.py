"""Collectives written in Python with Numba, on the device API: what ``algorithm="numba"`` runs.

Each file is the readable twin of one in cuda/, and the place to begin when an algorithm is to be changed. They are
imported when one is used first, for they need Numba.
"""
