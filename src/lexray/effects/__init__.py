"""What changes do to the answer: single ones, whole maps of them, patching, checks, gradients."""
