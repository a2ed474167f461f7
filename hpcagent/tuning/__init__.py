"""`hpcagent tune`: a script of one's own, run as fast as it can be, as accurately as it came."""
