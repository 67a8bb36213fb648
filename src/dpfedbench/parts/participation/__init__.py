"""Participation: which clients take part in which round, one file a way."""
