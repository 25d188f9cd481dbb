"""Agreement without a fixed leader. SPEC.md states the invariants and the reasons for them.

Import from the submodules: `chain` defines what is agreed, `core.Ledger` reaches the agreement,
`chain/verify.py` checks what others agreed, `failure_detector` says which peers are up. This
package does not use sockets, clocks or disks.
"""
