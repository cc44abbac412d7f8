"""The commands of `python -m pyncclx`."""
