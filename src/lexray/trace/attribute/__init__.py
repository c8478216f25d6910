"""What was added to a logit, by whom: one walk back through a recorded pass."""
