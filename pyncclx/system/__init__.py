"""What the machine says: driver, MPI library, folders. No package is needed, and no context is made."""
