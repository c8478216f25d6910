"""A recorded forward pass of any family, and what it was made of."""
