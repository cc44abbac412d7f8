"""From a call with checked arguments to its kernel on a stream."""
