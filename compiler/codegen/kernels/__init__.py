"""Kernels by family. Importing this package registers the lowerings of all ops in `calls.LOWERINGS`."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
