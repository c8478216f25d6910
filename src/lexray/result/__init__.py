"""What every function returns, and how it is shown: tables, readings, plots."""
