"""A seeded simulator that runs the real ledger code in virtual time, among simulated faults. A
*world* is one simulated run: its nodes, their disks, the network, the clock and the checkers.

`simulate(seed=…, peers=…, steps=…, profile=…)` returns a SimReport: the agreed steps, the
violations that checkers found, and whether the run got stuck. The same seed gives the same run,
event for event.
"""

from p2ptrain.simulation.profiles import PROFILES, Profile
from p2ptrain.simulation.run import SimReport, simulate

__all__ = ["PROFILES", "Profile", "SimReport", "simulate"]
