"""What a fine-tune or an adapter changed, as words."""
