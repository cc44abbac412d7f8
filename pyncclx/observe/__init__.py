"""What a program's operations ran as, and what the records of a job's ranks say: verdicts, traces, metrics."""
