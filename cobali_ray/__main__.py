"""The `cobali` program. It imports the rest where Ctrl-C is already handled."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while Python still imports it ends it silently, with status 130."""
    try:
        from cobali_ray.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
