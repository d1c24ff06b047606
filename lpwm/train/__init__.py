"""A run: everything that makes a model, as one JSON file that makes it again, and the folder it is made in."""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy
from lpwm.train.run_config import HealthConfig, TrainConfig

if TYPE_CHECKING:
    from lpwm.train.loaded import Loaded, load
    from lpwm.train.prepare import prepare_data
    from lpwm.train.run import Run
    from lpwm.train.run_config import DataConfig, RunConfig, parse_options, pick_device, read_record, run_hash

__getattr__, __dir__, __all__ = lazy(__name__)
