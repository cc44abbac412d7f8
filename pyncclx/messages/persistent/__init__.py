"""Persistent sends and receives, and the channels that graphs use."""
