"""The rules of every BUILD of this project, so that where they come from is one line."""

# Bazel's own. Newer ones have theirs in rules_python: declare that, and write instead:
# load("@rules_python//python:defs.bzl", _py_binary = "py_binary", _py_library = "py_library", _py_test = "py_test")
_py_binary, _py_library, _py_test = native.py_binary, native.py_library, native.py_test

py_library = _py_library

def py_binary(name, **attributes):
    # Else Bazel makes a package of binaries/.
    _py_binary(name = name, legacy_create_init = 0, **attributes)

def pytest_tests(deps, data = []):
    """A py_test for each test_*.py below a BUILD, and :support, the library of the rest.

    Args:
      deps: What the files import, but for pytest's files above them.
      data: What they read besides.
    """
    above = [] if native.package_name() == "tests" else ["//tests:support"]
    tests = native.glob(["**/test_*.py"], allow_empty = True)
    py_library(
        name = "support",
        testonly = True,
        srcs = native.glob(["**/*.py"], allow_empty = True, exclude = tests + ["bazel_main.py"]),
        deps = deps + above,
    )
    for path in tests:
        _py_test(
            name = path[:-len(".py")],
            size = "large",  # Bazel stops a file after 15 minutes.
            srcs = [path, "//tests:bazel_main.py"],
            main = "//tests:bazel_main.py",
            args = [native.package_name() + "/" + path],
            data = data + ["//:documents"],
            legacy_create_init = 0,
            deps = [":support"],
        )
