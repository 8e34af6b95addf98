"""Descriptions of kinds of GPUs, with which XLA compiles programs for GPUs on machines without a GPU."""

import importlib.util

import jax
from jax.experimental import topologies


_HOPPER = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 }}
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_block_limit: 1024 threads_per_core_limit: 2048 threads_per_warp: 32
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: 52428800 memory_bandwidth: {bandwidth} device_memory_size: {memory}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 }}
device_description_str: "NVIDIA {name}"
"""
TARGETS = {
    "h100": _HOPPER.format(name="H100 80GB HBM3", bandwidth=3_352_320_000_000, memory=84_929_347_584),
    "h200": _HOPPER.format(name="H200", bandwidth=4_800_000_000_000, memory=150_000_000_000),
}


def problem() -> str | None:
    """Return why programs for GPUs cannot be compiled here and what to do about it, or `None` if they can."""
    # `find_spec` fails for a module inside a package that is not installed.
    plugins = [f"jax_plugins.xla_cuda{version}" for version in (12, 13)]
    if not (importlib.util.find_spec("jax_plugins") and any(map(importlib.util.find_spec, plugins))):
        version = jax.__version__
        return (
            "compiling for GPUs needs JAX's CUDA plugin, but no GPU and no CUDA; run pip install --no-deps "
            f"jax-cuda13-plugin=={version} jax-cuda13-pjrt=={version}"
        )
    try:
        devices(next(iter(TARGETS)), 1)
    except NotImplementedError:  # the plugin has not registered its platform
        return "JAX's CUDA plugin does not start: set JAX_PLATFORMS=cpu where there is no GPU"
    return None


def devices(target: str, count: int) -> list:
    """Describe `count` GPUs of a kind in `TARGETS`. Programs can be compiled for these GPUs, but cannot run."""
    topology = f"1x1x{count}"  # the numbers of slices, processes and devices
    return topologies.get_topology_desc(platform="cuda", target_config=TARGETS[target], topology=topology).devices
