"""`python -m weft`, and what torchrun starts."""

from weft.cli.app import main

main()
