"""Agreement on one height: acceptor, proposer, electorate and timers."""
