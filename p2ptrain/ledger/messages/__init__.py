"""The messages between ledgers and their encoding, and a ledger's events and effects."""
