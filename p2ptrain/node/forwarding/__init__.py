"""Pass requests on between members that cannot connect to each other."""
