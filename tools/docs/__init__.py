"""What the documentation is made with: tutorials that are run, pages that the code writes."""
