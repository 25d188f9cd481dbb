"""Messages for people who only watch a run, and the checks with which they verify them."""
