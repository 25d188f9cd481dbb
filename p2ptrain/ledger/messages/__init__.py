"""Messages, events and effects of the core, and their encoding."""
