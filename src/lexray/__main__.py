"""`python -m lexray`: the command line, where the script is not on the path."""

from lexray.cli import main

if __name__ == "__main__":
    main()
