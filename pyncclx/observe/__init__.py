"""What a program's operations ran as: native, staged or on the host."""
