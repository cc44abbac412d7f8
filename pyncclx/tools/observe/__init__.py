"""Statistics of a program's operations, and verdicts, traces, metrics of a job."""
