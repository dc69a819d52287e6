"""``python -m paddler_trio``: the same as the ``paddler-trio`` command."""

from paddler_trio.cli import main

if __name__ == "__main__":
    main()
