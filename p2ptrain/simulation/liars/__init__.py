"""Peers of the simulated world that lie.

liar        a member that lies in every way that authentication leaves open
sybil       one attacker with many invented identities
spoiling    a participant that spoils reduces, and checkers that bound the harm
"""
