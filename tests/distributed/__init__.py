import pytest

pytest.register_assert_rewrite("tests.distributed.parity", "tests.distributed.training")
