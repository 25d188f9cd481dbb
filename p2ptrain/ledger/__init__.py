"""Agreement without a fixed leader. SPEC.md says what always holds, and why.

Import from the submodules: `chain` defines what is agreed, `core.Ledger` reaches the agreement,
`chain/verify.py` checks what others agreed, `failure_detector` says which peers are up. This
package knows no sockets, clocks or disks.
"""
