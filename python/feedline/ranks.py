"""Which rank this process is, as the launcher says."""

from __future__ import annotations

import os
import sys


def detect() -> tuple[int, int]:
    """Rank and number of ranks: from torch.distributed, torchrun, SLURM or JAX; otherwise 0 of 1."""
    torch = sys.modules.get("torch")
    if torch is not None:
        distributed = getattr(torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if rank in os.environ and world in os.environ:
            return _pair(rank, world)
    jax = sys.modules.get("jax")
    if jax is not None:
        state = getattr(getattr(jax, "_src", None), "distributed", None)
        client = getattr(getattr(state, "global_state", None), "client", None)
        # Asking JAX for its processes would start its backends: only where it is distributed.
        if client is not None:
            return jax.process_index(), jax.process_count()
    return 0, 1


def _pair(rank: str, world: str) -> tuple[int, int]:
    try:
        found = int(os.environ[rank]), int(os.environ[world])
    except ValueError:
        raise ValueError(
            f"{rank}={os.environ[rank]!r} and {world}={os.environ[world]!r} are no numbers; give "
            "rank= and world= to loader()"
        ) from None
    if not 0 <= found[0] < found[1]:
        raise ValueError(f"{rank}={found[0]} is no rank of {world}={found[1]}")
    return found
