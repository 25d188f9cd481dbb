"""The task that owns the ledger: its inbox, its outbox, its records and its branches."""
