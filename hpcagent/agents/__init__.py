"""A supervisor and specialists: a language model proposes, the gate disposes, numbers come from runs."""
