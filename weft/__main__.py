"""`python -m weft`, and what torchrun starts."""

from weft.cli import main

main()
