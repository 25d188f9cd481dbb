"""Let the peers of a run agree on a chain of entries without a fixed leader. SPEC.md states the
rules.

Import from the submodules: `chain` defines the entries, `core.Ledger` agrees on them with other
peers, `chain/verify.py` checks a chain that others agreed on, and `failure_detector` says which
peers are up. This package does not use sockets, clocks or disks.
"""
