"""Partitioned sends and receives, and how their two ends meet."""
