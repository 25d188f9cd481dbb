"""Opening data connections to a peer in every way that may work. Changes no state object."""
