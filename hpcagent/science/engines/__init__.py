"""Engines: what computes energies and forces, each as an ASE `Calculator`."""
