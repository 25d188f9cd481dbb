"""Copy a run's history to other programs, outside the training path."""
