"""`python -m polykv`."""

from polykv.cli import run

if __name__ == "__main__":
    run()
