"""What the studies have in common: prompts, measures, pages, resuming."""
