"""python -m pyncclx bench, bench-shuffle, bench-beside and tune: time operations, beside other libraries."""
