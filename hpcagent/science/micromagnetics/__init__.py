"""Micromagnetics: magnetisation on a grid of cells, its energies, hysteresis loops and dynamics."""
