"""python -m pyncclx: the command line."""
