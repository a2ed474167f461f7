"""Campaigns by their folders: run, attached, followed, opened, compared, listed, stopped, archived, removed."""
