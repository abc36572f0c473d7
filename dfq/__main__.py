"""`python -m dfq` is `dfq`."""

from dfq.cli import main

if __name__ == "__main__":
    main(prog_name="dfq")
