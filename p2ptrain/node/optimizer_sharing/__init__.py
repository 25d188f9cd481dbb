"""Inner optimizer states that members give to a joiner."""
