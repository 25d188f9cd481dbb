"""Agreement on the entry at one height: acceptor, proposer, electorate and timers."""
