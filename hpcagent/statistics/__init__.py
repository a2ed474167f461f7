"""Models of noisy numbers: of points in a space, of what was missed, of series in time. No policy, no campaign."""
