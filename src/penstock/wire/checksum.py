"""CRC32C, from the extension module of the `crc32c` wheel.

The package around that extension looks up its own version when imported, which loads a hundred modules and
takes longer than the rest of this room. Only the extension is needed, so only it is loaded.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from penstock.wire.buffers import Buffer


def _load() -> Callable[[Buffer], int]:
    package = PathFinder.find_spec("crc32c")
    if package is not None:
        spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            found: Callable[[Buffer], int] = module.crc32c
            return found
    from crc32c import crc32c as installed_otherwise

    return installed_otherwise


crc32c = _load()
