__version__ = "0.2.0"

# Part of the names of collected data: it changes when the same call would collect other episodes.
DATA_VERSION = "0.1.0"
