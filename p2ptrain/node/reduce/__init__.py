"""The reduce of one outer step: its order, its links and its task."""
