"""What a parameter does on running text, and whether its reading tells it."""
