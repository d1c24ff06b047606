"""The tool of this study: the page of claims, and the study of targets. `python -m results.tool --help`."""
