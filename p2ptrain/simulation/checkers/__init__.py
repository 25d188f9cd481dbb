"""Checkers of a simulated world. Each watches one guarantee, and reports its violations.

watching                   the interface of checkers, and their base class
spec_rules                 the invariants of every world, and the list of all checkers
accountability             forks that cannot be proved to be a liar's fault
branches                   branches of voters without a quorum
commits                    commits of updates that voters do not hold or a reduce did not produce
fairness, troubles         members that are dropped without a cause; the actual faults
founders_watch             the guarantees of open runs
lines, proposals           the line that a vote is for; votes for entries that are not allowed
"""
