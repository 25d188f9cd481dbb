"""When this machine may train, by its owner's word: pauses, a weekly schedule, and limits.

`windows` computes a schedule's times, `wishes` is what the owner has asked for, and `decision` says
whether to train now, and why not. This package reads no clocks, files or devices: the facts are
arguments. It does not know how a node pauses.
"""
