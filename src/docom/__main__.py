"""``python -m docom``."""

from docom.cli import main

if __name__ == "__main__":
    main()
