import pytest


@pytest.fixture(autouse=True, scope="session")
def own_key(tmp_path_factory):
    """The key that runs are signed with is the tests' own, in the processes that they start too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
