"""One module for each page: what it asks the library, and what it says around the answers."""
