"""The inner optimizer states that members give to a joiner."""
