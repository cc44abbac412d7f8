"""Command line: python -m pyncclx."""
