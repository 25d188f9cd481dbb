"""The task around the ledger: its inbox, its outbox, its records and its branches."""
