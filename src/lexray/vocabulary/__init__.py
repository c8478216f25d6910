"""Tokens as people read them: where they come from, how they are shown, which are admitted."""
