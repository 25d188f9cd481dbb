"""State that the tasks of one node share."""
