"""What was recorded, read as words: the logit lens of any vector."""
