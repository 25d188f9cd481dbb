"""Agreement without a leader that must live: SPEC.md says what always holds, and why.

Import from the submodules: `values` and `state` for what is agreed, `core.Ledger` for the agreeing,
`verify` for checking what others agreed, `detector` for who is up. Knows no sockets, clocks or
disks.
"""
