"""Runs one test file under bazel, with the same selection of markers as `make test`."""

import sys

import pytest

if __name__ == "__main__":
    selection = ["-m", "not network and not statistical", "-p", "no:cacheprovider"]
    code = pytest.main([*selection, *sys.argv[1:]])
    # A file whose tests are all left out by the selection has nothing to fail.
    sys.exit(0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code)
