"""What a communicator carries: its settings, and on the device its lease, its windows, its stream order."""
