"""Runs the programs in `docs` and the README unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Server

PACKAGE = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def written(page: str, to: Path) -> None:
    """Writes each block to the file that its first line names."""
    for block in BLOCK.findall((PACKAGE / "docs" / page).read_text()):
        named = re.match(r"# (\S+\.py)\n", block)
        assert named, f"a block of {page} names no file: {block[:40]}"
        file = to / named[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block)


def ran(directory: Path, url: str, *words: str) -> None:
    environment = dict(os.environ, TENURE_URL=url, PYTHONPATH=str(directory))
    run = subprocess.run(
        [sys.executable, *words], cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]


@pytest.mark.parametrize("page", ["django.md", "fastapi.md", "celery.md", "prometheus.md"])
def test_a_page_runs(page: str, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server")
    try:
        written(page, tmp_path)
        ran(tmp_path, server.url, "try_it.py")
    finally:
        server.stop()


def test_the_page_on_pytest_runs(tmp_path: Path) -> None:
    written("pytest.md", tmp_path)
    ran(tmp_path, "", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_billing.py")


@pytest.mark.parametrize("page", ["README.md", "../../book/start/python.md"])
def test_a_first_program_runs(page: str, server: Server, tmp_path: Path) -> None:
    blocks = BLOCK.findall((PACKAGE / page).read_text())
    assert blocks
    for number, block in enumerate(blocks):
        file = tmp_path / f"block{number}.py"
        file.write_text(block.replace("redis://localhost", server.url))
        ran(tmp_path, server.url, file.name)
