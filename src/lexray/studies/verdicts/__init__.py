"""The rules by which the longer studies judge the papers' claims, one module for each of them."""
