"""Benchmarks: the commands bench, bench-shuffle, bench-beside and tune."""
