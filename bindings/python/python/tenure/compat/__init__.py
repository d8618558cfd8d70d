"""Locks of other packages, with their names and habits, on locks of tenure."""
