"""Checkers of a simulated world. Each watches one promise, and reports its violations.

watching                   the interface of checkers, and their base class
spec_rules                 the invariants of every world, and the list of all checkers
accountability             forks that no liar explains
branches                   branches of voters without a quorum
commits                    commits of updates that nobody holds or made
fairness, troubles         members that are dropped without a cause; the true causes
founders_watch             the promises of open runs
lines, proposals           whose line a vote is for; votes for entries that nobody may propose
"""
