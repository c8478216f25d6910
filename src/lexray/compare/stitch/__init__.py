"""The first layers of one model, the last ones of another, joined through the vocabulary."""
