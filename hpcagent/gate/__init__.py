"""The gate: who may run what, at what cost, and who said yes. One place, before anything reaches a site."""
