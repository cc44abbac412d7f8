"""Partitioned sends and receives, and the handshake of their two ends."""
