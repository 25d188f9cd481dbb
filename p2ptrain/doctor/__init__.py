"""Examine this machine, its home and its way to a run, without joining the run.

    checks.py          the list of all checks; add a check here
    runner.py          runs checks with deadlines; a check that hangs or crashes becomes a finding
    finding.py         the result of a check: one line with a level and a fix
    subject.py         what is examined, and notes for the checks of the next phase

Every other module holds one or a few checks. In each of them, one function collects facts, and a
pure function judges them. The package does not print; `cli.commands.doctor` does.
"""
