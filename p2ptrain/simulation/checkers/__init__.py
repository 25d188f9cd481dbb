"""Checkers of a simulated world. Each watches one guarantee, and reports its violations. Names of
rules, such as S1 or R3, are those of ledger/SPEC.md.

watching                   the base class of checkers
spec_rules                 the invariants of every world, and the list of all checkers
accountability             forks that cannot be proved to be a liar's fault
branches                   branches of voters without a quorum
commits                    commits of updates that voters do not hold or a reduce did not produce
fairness, troubles         members that are dropped without a cause; the faults that really happened
founders_watch             the guarantees of open runs
lines                      the run or branch that a message is about
proposals                  votes for entries that are not allowed
"""
