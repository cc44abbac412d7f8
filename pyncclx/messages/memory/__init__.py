"""Memory of messages: bounce buffers, pinned headers, and what peers have opened."""
