"""A run: everything that makes a model, as one JSON file that makes it again, and the folder it is made in."""

from lpwm.train.run import Loaded, Run, load, read_record
from lpwm.train.run_config import (
    DataConfig,
    RunConfig,
    half_precision,
    parse_options,
    pick_device,
    prepare_data,
    run_hash,
)

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
