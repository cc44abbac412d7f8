"""Statistics of a program's operations; verdicts, traces and metrics of a job."""
