"""What peers tell each other about the history of the run. It is only displayed."""
