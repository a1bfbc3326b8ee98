"""The durable engine is an extra: without it there is nothing to test here."""

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")
