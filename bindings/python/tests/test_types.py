"""The types of the package under two strict type checkers, and the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import tenure

PACKAGE = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "command", [["mypy", "--no-error-summary"], ["pyright", "--pythonpath", sys.executable]], ids=["mypy", "pyright"]
)
def test_the_types_are_strict(command: list[str]) -> None:
    checked = subprocess.run([sys.executable, "-m", *command], cwd=PACKAGE, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def modules() -> list[str]:
    return ["tenure", *(f"tenure.{module.name}" for module in pkgutil.iter_modules(tenure.__path__))]


def test_the_examples_run() -> None:
    tried = 0
    for module in modules():
        if module != "tenure._native":
            results = doctest.testmod(importlib.import_module(module), raise_on_error=False)
            assert not results.failed
            tried += results.attempted
    assert tried > 50


def test_the_stub_names_what_the_extension_has() -> None:
    from tenure import _native

    stub = (PACKAGE / "python/tenure/_native.pyi").read_text()
    for name in dir(_native):
        if name.startswith("_"):
            continue
        thing = getattr(_native, name)
        assert f"class {name}:" in stub or f"def {name}(" in stub, name
        if isinstance(thing, type):
            body = stub.partition(f"class {name}:")[2].partition("\n@final")[0]
            for member in vars(thing):
                if not member.startswith("__"):
                    assert f"def {member}(" in body or f"    {member}: " in body, f"{name}.{member}"


def test_each_public_thing_is_documented_and_async_twins_exist() -> None:
    for name in tenure.__all__:
        thing = getattr(tenure, name)
        assert thing.__doc__, name
        if not isinstance(thing, type):
            continue
        for member, value in vars(thing).items():
            if not member.startswith("_") and callable(value):
                assert value.__doc__ or any(getattr(base, member, None) for base in thing.__mro__[1:]), (name, member)
    for guard in ("verify", "renew", "release", "detach", "keep_for"):
        assert hasattr(tenure.Guard, guard) and hasattr(tenure.Guard, f"a{guard}")


def test_the_import_is_light() -> None:
    """Slow modules are imported on first use."""
    listed = subprocess.run(
        [sys.executable, "-c", "import sys, tenure; print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"asyncio", "ssl", "inspect", "dataclasses", "logging", "json", "subprocess", "datetime"}
    assert not heavy & set(listed)
