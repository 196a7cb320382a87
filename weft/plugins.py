"""Modules of others that add to weft's registries: codecs, partition methods, layers, reducers.

WEFT_PLUGINS=my_codecs,my_methods names modules of a user's own; an installed package names its module as an entry point
of the group "weft.plugins". Every process of a run imports them when a name is asked for that a registry does not know.
Environment and packages are the user's own, so that no run folder can name code in this way.
"""

import importlib.metadata
import os
from functools import cache

from weft.errors import UserError
from weft_function.own import import_own

VARIABLE, ENTRY_POINTS = "WEFT_PLUGINS", "weft.plugins"


def load_plugins() -> None:
    """Imports what installed packages and the environment name; a module that has been imported is not run again."""
    _load_installed()
    for module in filter(None, (name.strip() for name in os.environ.get(VARIABLE, "").split(","))):
        try:
            import_own(module)
        except (ImportError, ValueError) as error:
            raise UserError(
                f"{VARIABLE} names {module}, which cannot be imported ({error}): it must be on the Python path or in "
                "the current folder"
            ) from None


@cache
def _load_installed() -> None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        entry.load()
