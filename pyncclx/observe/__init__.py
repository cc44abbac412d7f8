"""What a program's operations ran as, and what follows from the records of a job's ranks: verdicts, traces, metrics."""
