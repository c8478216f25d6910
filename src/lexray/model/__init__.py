"""A model and its parts: layers, heads, feed-forwards, circuits, vectors."""
