"""Structures from scratch: crystals, surfaces, molecules, boxes."""
