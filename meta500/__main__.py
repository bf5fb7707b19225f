"""``python -m meta500`` is the command ``meta500``."""

from meta500.cli import main

if __name__ == "__main__":
    main()
