"""python -m pyncclx: the commands."""
