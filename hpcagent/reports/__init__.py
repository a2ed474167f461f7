"""What a record is shown as: the report, its plots, why a run was made, what the runs taught."""
