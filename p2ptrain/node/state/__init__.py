"""What the tasks of one node share."""
