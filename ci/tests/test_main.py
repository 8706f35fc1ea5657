"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ci.__main__ import COMMANDS, main


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_is_there(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: python -m ci" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["--device", "cpu"], ["nonsense", "replay"]])
def test_what_is_no_command_is_refused(arguments: list[str]):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize("name", ["merge", "mutants", "nightly", "replay"])
def test_triton_is_not_imported_before_its_interpreter_is_asked_for(name: str):
    """`mutants --device cpu` was refused because another command had imported it."""
    script = (
        "import sys\nfrom ci.__main__ import main\n"
        f"try:\n    main([{name!r}, '--help'])\nexcept SystemExit:\n    pass\nsys.exit('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
