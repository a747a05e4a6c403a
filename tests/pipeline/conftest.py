"""What tests of whole runs need not wait for."""

from __future__ import annotations

import pytest

from tests.pipeline.runs import leave_undrawn


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)
