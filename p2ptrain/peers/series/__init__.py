"""The messages in which peers tell each other the history of the run. It is only displayed."""
