"""Sparse autoencoders and transcoders: features that are read like neurons."""
