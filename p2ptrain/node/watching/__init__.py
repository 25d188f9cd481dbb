"""Let strangers watch the run, and watch one."""
