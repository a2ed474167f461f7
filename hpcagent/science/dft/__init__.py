"""Density functional theory (and what stands in for it) as apps."""
