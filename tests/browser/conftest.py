import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def documents():
    path = Path(__file__).parents[1] / "report" / "documents.py"
    spec = importlib.util.spec_from_file_location("report_documents", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
