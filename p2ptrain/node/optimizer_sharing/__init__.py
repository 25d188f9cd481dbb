"""Members send the states of their inner optimizers to a peer that joins the run."""
