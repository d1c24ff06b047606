"""A run: everything that makes a model, as one JSON file that makes it again, and the folder it is made in."""

from lpwm.run.config import (
    DataConfig,
    RunConfig,
    half_precision,
    parse_options,
    pick_device,
    prepare_data,
    run_hash,
)
from lpwm.run.folder import Loaded, Run, load, read_record

__all__ = [
    "DataConfig",
    "Loaded",
    "Run",
    "RunConfig",
    "half_precision",
    "load",
    "parse_options",
    "pick_device",
    "prepare_data",
    "read_record",
    "run_hash",
]
