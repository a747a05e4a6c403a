"""Memory that a call takes."""

from pathlib import Path

import numpy as np
import pytest

from dagster_divorder.engine import memory


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone can tell the peak")
def test_what_a_call_takes_is_seen_even_if_it_is_freed():
    result, peak = memory.with_peak_memory(lambda: int(np.ones(100 << 20, np.uint8).sum()))
    assert result == 100 << 20
    assert peak is not None and 95 << 20 < peak < 200 << 20
    result, peak = memory.with_peak_memory(lambda: 7)
    assert result == 7 and peak is not None and peak < 20 << 20


def test_elsewhere_it_says_nothing(monkeypatch):
    def refuse(self, text):
        raise OSError

    monkeypatch.setattr(Path, "write_text", refuse)
    assert memory.with_peak_memory(lambda: 7) == (7, None)
