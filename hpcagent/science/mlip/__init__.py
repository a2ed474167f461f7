"""Molecular dynamics and relaxation in ASE, with a machine-learned potential or any other engine."""
