"""Chemical reactions: formulas, balances, and enthalpies by tables of standard values."""
