"""Progress of messages: open receives, pending sends, and the monitor thread."""
