"""Two models that share a vocabulary, related through it: diff, align, stitch."""
