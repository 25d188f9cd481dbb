"""The reduce of one outer step: its peer order, its links and its task."""
