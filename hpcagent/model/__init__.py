"""The records: what is asked of an app, what it promises, what came back."""
