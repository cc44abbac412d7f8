"""What tests share: arrays, results to compare with, stand-ins for GPUs and libraries, cases for several files."""
