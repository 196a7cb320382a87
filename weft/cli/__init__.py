"""The command line: `weft.cli.app` has one verb per thing that a person wants to do."""
