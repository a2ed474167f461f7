"""The tab key completes commands and options in a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options_once_it_is_installed(tmp_path):
    script = """
    hpcagent --install-completion > /dev/null
    source ~/.bashrc
    tab() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _hpcagent_completion hpcagent; }
    tab hpcagent arch; echo "${COMPREPLY[@]}"
    tab hpcagent rm --ke; echo "${COMPREPLY[@]}"
    complete -p hpcagent
    """
    done = subprocess.run(
        ["bash", "-uc", script],
        env=os.environ | {"HOME": str(tmp_path), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    command, option, bound = done.stdout.splitlines()
    assert (command, option) == ("archive", "--keep-records")
    assert "-F _hpcagent_completion hpcagent" in bound


@pytest.mark.parametrize(
    ("shell", "begins"), [("zsh", "#compdef hpcagent"), ("fish", "complete --command hpcagent")]
)
def test_there_is_a_script_for_zsh_and_fish(shell, begins):
    done = subprocess.run(
        [BIN / "hpcagent", "--show-completion", shell],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith(begins)
