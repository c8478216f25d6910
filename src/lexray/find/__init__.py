"""Searching a model: who knows about a word, what is like this parameter."""
