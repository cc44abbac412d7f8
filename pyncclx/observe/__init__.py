"""What a program's operations were done by."""
