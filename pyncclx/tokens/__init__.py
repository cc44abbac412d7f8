"""Token shuffles: dispatch, combine, collect."""
