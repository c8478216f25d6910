"""Where everything in a flow graph lies, and how it is drawn."""
