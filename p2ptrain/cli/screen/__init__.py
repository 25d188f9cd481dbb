"""The screen of `p2ptrain top`: what it shows, how it is drawn, and where the facts come from."""
