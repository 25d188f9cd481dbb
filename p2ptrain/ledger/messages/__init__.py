"""The messages, events and effects of the ledger, and their encoding."""
