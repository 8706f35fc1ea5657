"""`ci/run` finds out what is missing, picks the right build, and says what is wrong. No network."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ci import environment

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "ci" / "run"


def gaps(*wanted, device="cpu", **versions):
    return environment.gaps(wanted, device=device, version_of=versions.get)


@pytest.mark.parametrize("script", ["ci/run", ".ci/run"])
def test_scripts_are_executable_and_parse(script):
    path = ROOT / script
    assert path.stat().st_mode & stat.S_IXUSR
    shell = path.read_text().partition("\n")[0].removeprefix("#!")
    assert subprocess.run([shell, "-n", str(path)], check=False).returncode == 0


def test_run_needs_no_bash():
    shells = [shell for shell in ("dash", "busybox") if shutil.which(shell)]
    if not shells:
        pytest.skip("no plain POSIX shell here")
    command = [shells[0], *(["sh"] if shells[0] == "busybox" else []), str(RUN), "--help"]
    assert "./ci/run test" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_every_requirement_of_the_project_is_understood():
    wanted = environment.requirements(extra="dev") + environment.interpreter_limits()
    missing = environment.gaps(wanted, device="cpu", version_of=lambda _: None)
    assert len(missing) == len(wanted)
    assert {"torch is not installed", "pytest-xdist is not installed", "ruff is not installed"} <= set(missing)
    assert missing[-1] == "numpy is not installed"


def test_this_environment_is_complete():
    assert environment.gaps(environment.requirements(), device="cpu", version_of=environment.installed) == []


@pytest.mark.parametrize(
    ("wanted", "version", "fits"),
    [
        ("torch", "0.1", True),
        ("torch>=2.8", "2.13.0+cpu", True),
        ("torch>=2.8", "2.7.1", False),
        ("torch>=2.8", "2.8", True),
        ("torch>=2.13.0", "2.13.0rc1", True),
        ("torch>=2.8,<3", "3.0", False),
        ("torch <2.4", "2.3.5", True),
        ("torch <2.4", "2.4.0", False),
        ("torch==2.13", "2.13.1", True),
        ("torch==2.13.0", "2.13.1", False),
    ],
)
def test_versions(wanted, version, fits):
    assert (gaps(wanted, torch=version) == []) is fits


def test_a_gap_names_what_is_there_and_what_is_wanted():
    assert gaps("numpy<2.4", numpy="2.5.1") == ["numpy is 2.5.1, expected <2.4"]


def test_a_gpu_wants_a_cuda_build():
    assert gaps("torch", device="cuda", torch="2.11.0+cu130") == []
    assert gaps("torch", device="cpu", torch="2.13.0+cpu") == []
    assert len(gaps("torch", device="cuda", torch="2.13.0+cpu")) == 1


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="torch @ https://example"):
        gaps("torch @ https://example.org/torch.whl")


@pytest.mark.parametrize(
    ("packages", "build"),
    [
        (["torch", "numpy"], "cpu"),
        (["torch", "nvidia-cublas", "triton"], "cuda"),
        (["torch", "cuda-toolkit"], "cuda"),
        ([], "cpu"),
    ],
)
def test_build_in_a_pip_report(tmp_path, capsys, packages, build):
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"install": [{"metadata": {"name": name}} for name in packages]}))
    assert environment.main(["--build-in", str(report)]) == 0
    assert capsys.readouterr().out == f"{build}\n"


def run(*arguments, cwd=None, **environ):
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHON", "PYTHONPATH", "MSDA_FROM")
    }
    return subprocess.run(
        ["sh", RUN, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env={**clean, **environ}
    )


def fake_python(folder, *, version_fits=True, complete=True):
    """An interpreter for show: answers the two questions that `ci/run` asks, and prints any other command."""
    path = folder / "python"
    answer = "exit 0" if complete else "echo '  torch is not installed'; exit 1"
    path.write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in\n'
        f'"-c "*) exit {0 if version_fits else 1} ;;\n'
        '"-V "*) echo Python 3.9.1; exit 0 ;;\n'
        f"*environment.py*) {answer} ;;\n"
        'esac\necho "ran: $* in $PWD with $PYTHONPATH"\n'
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ((), "-m pytest -n auto properties --ignore=properties/tests"),
        (("-k", "forward"), "-m pytest -n auto properties --ignore=properties/tests -k forward"),
        (("test",), "-m pytest -n auto"),
        (("test", "-x", "msda"), "-m pytest -n auto -x msda"),
    ],
)
def test_a_complete_interpreter_is_used_as_it_is(tmp_path, arguments, command):
    done = run(*arguments, cwd=tmp_path, PYTHON=fake_python(tmp_path))
    assert done.returncode == 0
    assert f"ran: {command} in {ROOT} with {ROOT}" in done.stdout.splitlines()
    assert "as it is" in done.stdout


def test_the_activated_environment_comes_first(tmp_path):
    (tmp_path / "bin").mkdir()
    fake_python(tmp_path / "bin")
    done = run("setup", VIRTUAL_ENV=str(tmp_path))
    assert done.returncode == 0
    assert str(tmp_path / "bin" / "python") in done.stdout


def test_an_old_interpreter_is_refused(tmp_path):
    done = run(PYTHON=fake_python(tmp_path, version_fits=False))
    assert done.returncode == 1
    assert "Python 3.9.1; expected Python 3.11 or later" in done.stderr


def test_a_missing_interpreter_is_refused():
    done = run("test", PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert "no interpreter /nowhere/python" in done.stderr


def test_failing_tests_fail_the_command(tmp_path):
    python = Path(fake_python(tmp_path))
    python.write_text(python.read_text().replace('echo "ran', "exit 7 #"))
    assert run("test", PYTHON=str(python)).returncode == 7


def test_a_failing_installation_fails_the_command(tmp_path):
    # A copy, since this one would make a .venv in the repository.
    for name in ("run", "environment.py", "requirements-cpu.txt"):
        (tmp_path / "ci").mkdir(exist_ok=True)
        shutil.copy(ROOT / "ci" / name, tmp_path / "ci" / name)
    python = Path(fake_python(tmp_path, complete=False))
    python.write_text(python.read_text().replace('echo "ran', "exit 3 #"))
    done = subprocess.run(
        ["sh", tmp_path / "ci" / "run", "setup"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHON": str(python)},
    )
    assert done.returncode == 1
    assert "  torch is not installed" in done.stdout
    assert "could not create" in done.stderr


def test_lint_asks_for_the_development_tools(tmp_path):
    python = Path(fake_python(tmp_path))
    python.write_text(python.read_text().replace("exit 0 ;;\nesac", 'echo "asked: $*" >&2; exit 0 ;;\nesac'))
    assert "--extra dev" in run("lint", PYTHON=str(python)).stderr
    assert "--extra" not in run("test", PYTHON=str(python)).stderr


def test_replay_leaves_standard_output_to_the_command(tmp_path):
    done = run("replay", "case.json", "--explain", cwd=tmp_path, PYTHON=fake_python(tmp_path))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"ran: -m ci replay case.json --explain in {ROOT} with {ROOT}"]
    assert "as it is" in done.stderr


def test_an_extra_takes_up_the_extras_that_it_names():
    wanted = environment.requirements(extra="dev")
    assert any(requirement.startswith("ruff") for requirement in wanted)
    for package in ("matplotlib", "transformers"):
        assert any(requirement.startswith(package) for requirement in wanted)
    assert not any("msda-verify" in requirement for requirement in wanted)
    assert not any(requirement.startswith("matplotlib") for requirement in environment.requirements())


def test_check_runs_on_the_standard_library_alone():
    script = ROOT / "ci" / "environment.py"
    done = subprocess.run([sys.executable, "-S", "-I", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "torch is not installed" in done.stdout
