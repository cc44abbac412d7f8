"""An empty torchvision where there is none that loads: heat imports it, for data sets."""

import sys
import types


def _anything(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return object


try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):  # one that was built for another PyTorch does not load
    for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__getattr__ = _anything
    for name in ("transforms", "datasets"):
        setattr(sys.modules["torchvision"], name, sys.modules[f"torchvision.{name}"])
