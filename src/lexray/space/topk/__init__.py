"""The exact engines: the largest of all token pairs, the largest tokens of many vectors."""
