"""The command `python -m decompops info`."""

import argparse
import difflib
import importlib.metadata
import json
import os
import platform
from typing import Any

import jax

from ... import __version__, config
from ..._core.config import VARIABLES
from ..._core.registry import all_backends
from .arguments import Parser
from .devices import jax_devices
from .output import labelled, plural


def add(parser: Parser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def versions() -> dict[str, str]:
    """Return the versions of decompops, JAX and Python."""
    packages = {package: importlib.metadata.version(package) for package in ("jax", "jaxlib")}
    return {"decompops": __version__, **packages, "python": platform.python_version()}


def _run(options: argparse.Namespace) -> int:
    found = _facts()
    print(json.dumps(found, indent=2) if options.json else labelled(_lines(found)))
    return 0


def _facts() -> dict[str, Any]:
    devices = jax_devices()
    backends = []  # A list keeps both backends if a faulty package reuses the name of a backend.
    for name, backend in all_backends():
        problem = backend if isinstance(backend, str) else None
        features = None if isinstance(backend, str) else backend.missing_features()
        backends.append({"name": name, "available": problem is None, "problem": problem, "features": features})
    return {
        "versions": versions(),
        "platform": jax.default_backend(),
        "processes": jax.process_count(),
        "devices": len(devices),
        "device_kinds": sorted({device.device_kind for device in devices}),
        "backends": backends,
        "defaults": _defaults(),
        "misspelt": _misspelt(),
    }


def _defaults() -> dict[str, Any]:
    try:
        backend = None if config.backend is None else str(config.backend)
    except (ValueError, ImportError) as error:  # An environment variable names an unknown backend, or a broken one.
        return {"problem": str(error)}
    return {"backend": backend}


def _misspelt() -> dict[str, str]:
    """Return the environment variables that decompops does not read, with the variables that were probably meant."""
    prefix = "DECOMPOPS_"
    known = [name.removeprefix(prefix) for name in VARIABLES]
    unread = [name for name in os.environ if name.startswith(prefix) and name not in VARIABLES]
    similar = {name: difflib.get_close_matches(name.removeprefix(prefix), known, n=1) for name in sorted(unread)}
    return {name: f"{prefix}{found[0]}" for name, found in similar.items() if found}


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = list(found["versions"].items())
    lines.append(("platform", f"{found['platform']}, {plural(found['processes'], 'process', 'processes')}"))
    lines.append(("devices", f"{found['devices']} ({', '.join(found['device_kinds'])})"))
    for backend in found["backends"]:
        words = ["available", backend["features"]] if backend["available"] else [f"not available: {backend['problem']}"]
        lines.append((f"backend {backend['name']}", ", ".join(filter(None, words))))
    defaults = found["defaults"]
    problem = defaults.get("problem")
    options = ", ".join(f"{name}={value}" for name, value in defaults.items())
    lines.append(("defaults", f"invalid: {problem}" if problem else options))
    lines += [("ignored", f"{name}; did you mean {meant}?") for name, meant in found["misspelt"].items()]
    return lines
