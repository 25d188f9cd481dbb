"""Commands about the page that a node serves."""
