"""The task that owns the ledger, with its inbox, outboxes, records and branches."""
