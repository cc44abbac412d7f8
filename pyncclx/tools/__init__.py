"""The commands of `python -m pyncclx`, and what they need beside the library."""
