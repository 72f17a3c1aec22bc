"""Steps and checks of test_compaction_model.py, with the generational scheduler.

The space limit is only a little above the size of the live data, so that cleanings are often due.
"""

import pytest
from tests.property.test_compaction_model import GENERATIONAL, live

QUICK, SWEPT = 200, 19_800
CHUNKS, SWEPT_CHUNKS = 5, 38


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_last_value_of_each_key_is_always_there(chunk: int) -> None:
    live(range(chunk, QUICK, CHUNKS), GENERATIONAL)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(SWEPT_CHUNKS))
def test_the_same_many_times(chunk: int) -> None:
    live(range(QUICK + chunk, QUICK + SWEPT, SWEPT_CHUNKS), GENERATIONAL)
