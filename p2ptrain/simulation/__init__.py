"""A seeded simulator that runs the ledger of real nodes through a hostile world in virtual time.

`simulate(seed=…, peers=…, steps=…, profile=…)` returns a SimReport: what was agreed, which checker
objected, and whether the run got stuck. The same seed gives the same run, event by event.
"""

from p2ptrain.simulation.profiles import PROFILES, Profile
from p2ptrain.simulation.run import SimReport, simulate

__all__ = ["PROFILES", "Profile", "SimReport", "simulate"]
