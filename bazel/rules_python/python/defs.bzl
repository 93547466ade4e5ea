"""Bazel's native Python rules under the name that rules_python gives them."""

py_library = native.py_library
py_test = native.py_test
