"""The command, in a process of its own: it compiles for real, finds what was planted, and says what cannot be run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.codegen.catalogue import ARCHITECTURES, PRIMARY, entries, selected
from ci.codegen.pool import CouldNotRun, Job, environment, jobs, run
from ci.codegen.rows import make

ROOT = Path(__file__).resolve().parents[3]
KEYS = [
    *("kernel", "dtype", "arch", "registers", "spills", "instructions", "loads_16_byte", "vector_reductions"),
    *("cas_loops", "fences", "seconds", "problems"),
]
NARROW = "backward-fp32-fp32-fp32"


def codegen(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # TRITON_INTERPRET as in a test run without a GPU: the command must not be confused by it.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MSDA_"))}
    command = [sys.executable, "-m", "ci", "codegen", *arguments]
    return subprocess.run(
        command,
        cwd=root,
        env=kept | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def planted(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """A copy of the sources with one thing changed."""
    skipped = shutil.ignore_patterns("__pycache__", "tests", "corpus", "pictures")
    for package in ("ci", "msda", "properties", "reference"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=skipped)
    target = tmp_path / file
    text = target.read_text()
    assert old in text
    target.write_text(text.replace(old, new))
    return tmp_path


def test_one_kernel_on_two_architectures(tmp_path: Path):
    file = tmp_path / "rows.json"
    done = codegen("--arch", "gfx942,sm_90", "--kernel", NARROW, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert "2 kernels for gfx942, sm_90" in done.stdout.splitlines()[-1]
    content = json.loads(file.read_text())
    assert list(content) == ["schema", "versions", "rows"]
    assert content["schema"] == 1
    assert content["versions"]["triton"]
    amd, nvidia = content["rows"]
    assert list(amd) == KEYS
    assert list(nvidia) == KEYS
    assert [(row["arch"], row["kernel"], row["dtype"]) for row in content["rows"]] == [
        ("gfx942", "backward", "fp32"),
        ("sm_90", "backward", "fp32"),
    ]
    assert nvidia["vector_reductions"] == 32
    assert nvidia["loads_16_byte"] == 40
    assert amd["vector_reductions"] == 0
    for row in content["rows"]:
        assert row["problems"] == []
        assert (row["spills"], row["cas_loops"], row["fences"]) == (0, 0, 0)
        assert 64 < row["registers"] <= 255
        assert 500 < row["instructions"] < 5000


def test_fences_are_found(tmp_path: Path):
    root = planted(tmp_path, "msda/kernels.py", 'sem="relaxed"', 'sem="acq_rel"')
    done = codegen("--arch", "sm_90,gfx942", "--kernel", NARROW, "--json", "rows.json", root=root)
    assert done.returncode == 1, done.stdout + done.stderr
    for row in json.loads((root / "rows.json").read_text())["rows"]:
        assert row["fences"] > 0
        assert any(problem == f"fences: {row['fences']}, expected none" for problem in row["problems"]), row


def test_spills_are_found(tmp_path: Path):
    root = planted(tmp_path, "msda/launch.py", '{"num_warps"', '{"maxnreg": 64, "num_warps"')
    done = codegen("--arch", "sm_90", "--kernel", NARROW, "--json", "rows.json", root=root)
    assert done.returncode == 1, done.stdout + done.stderr
    (row,) = json.loads((root / "rows.json").read_text())["rows"]
    assert row["registers"] <= 64
    assert row["spills"] > 0
    assert row["problems"] == [f"spilled registers: {row['spills']}, expected none"]
    assert f"codegen problem: sm_90 backward fp32: {row['problems'][0]}" in done.stdout


def test_what_does_not_compile_is_a_problem(tmp_path: Path):
    root = planted(tmp_path, "msda/kernels.py", "j = p_start + row % BLOCK_P", "j = p_start + row % NOBODY")
    done = codegen("--arch", "sm_90", "--kernel", "forward-fp32-fp32-fp32", "--json", "rows.json", root=root)
    assert done.returncode == 1, done.stdout + done.stderr
    (row,) = json.loads((root / "rows.json").read_text())["rows"]
    assert row["registers"] is None
    assert row["problems"][0].startswith("does not compile: ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--arch", "sm_70"], "'sm_70' given, expected some of sm_80,sm_90,sm_100,gfx942"),
        (["--kernel", "sideward"], "kernel: 'sideward' matches none"),
        (["--workers", "0"], "'0' given, expected 1 or more"),
    ],
)
def test_what_cannot_be_run(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    try:
        status: object = main(["codegen", *arguments])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert told in capsys.readouterr().err


def test_without_a_backend(tmp_path: Path):
    root = planted(tmp_path, "ci/codegen/catalogue.py", 'backend="hip"', 'backend="xpu"')
    done = codegen("--arch", "gfx942", "--kernel", "place*", root=root)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "gfx942: triton" in line
    assert "0 compatible backends" in line


def test_an_architecture_that_the_assembler_does_not_know(tmp_path: Path):
    root = planted(tmp_path, "ci/codegen/catalogue.py", "number=100", "number=999")
    done = codegen("--arch", "sm_100", "--kernel", "place*", root=root)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "'sm_999a' is not defined" in line


def test_list(capsys: pytest.CaptureFixture[str]):
    assert main(["codegen", "--list", "--arch", "sm_80,sm_90"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"sm_80 {NARROW}" in lines
    assert "sm_80 backward-fp32-fp32-fp32-broad" not in lines
    assert "sm_90 backward-fp32-fp32-fp32-broad" in lines


def test_what_is_selected():
    everything = entries()
    assert [e.name for e in selected(PRIMARY, everything=True)] == list(everything)
    primary = {e.name for e in selected(PRIMARY)}
    assert {name for name in everything if "wide" not in name.split("-")} <= primary
    for architecture in ARCHITECTURES:
        names = {e.name for e in selected(architecture)}
        assert names <= primary
        # Every kernel, and every dtype that it has.
        kernels = {e.kernel.split("-")[0] for e in everything.values()}
        assert {everything[name].kernel.split("-")[0] for name in names} == kernels
        backward = {everything[name].dtype for name in names if everything[name].kernel == "backward"}
        assert backward >= {"fp64", "fp32", "fp16", "bf16"}
    assert {e.dtype for e in everything.values() if e.kernel in ("place", "arrange")} == {"int"}


def test_arguments_that_compile_anew_are_problems():
    entry = next(iter(entries().values()))
    counts = {"instructions": 9, "loads_16_byte": 4}
    built = {"counts": counts, "registers": 9, "scalar_registers": 0, "spills": 0, "seconds": 0.5, "specialised": ["Q"]}
    assert make("sm_90", entry, built, []).problems == ["compiled anew for other values of Q"]


def test_jobs_are_shared():
    found = jobs({"sm_90": [str(i) for i in range(20)], "gfx942": ["a"]}, workers=2)
    assert [len(job.names) for job in found] == [8, 8, 4, 1]
    assert len(jobs({"sm_90": ["a", "b"]}, workers=2)) == 2


def test_a_compiler_that_takes_its_process_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A stand-in for the worker: it answers, but for one kernel.
    folder = tmp_path / "ci" / "codegen"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("")
    (folder / "worker.py").write_text(
        "import json, os, sys\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    names = json.loads(line)['names']\n"
        "    if 'bad' in names:\n"
        "        sys.stderr.write('LLVM ERROR: out of luck\\n')\n"
        "        sys.stderr.flush()\n"
        "        os._exit(134)\n"
        "    print(json.dumps({'results': [{'name': name} for name in names]}), flush=True)\n"
    )
    monkeypatch.setattr("ci.codegen.pool.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    answers: dict[str, object] = {}
    job = Job(architecture="sm_90", names=("good", "bad", "fine"))
    run([job], lambda job, results: answers.update(zip(job.names, results, strict=True)), workers=1, cache=tmp_path)
    told = "does not compile: the compiler ended its process: LLVM ERROR: out of luck"
    assert answers == {"good": {"name": "good"}, "bad": {"failed": told}, "fine": {"name": "fine"}}
    (folder / "worker.py").write_text("raise SystemExit('no such package')\n")
    with pytest.raises(CouldNotRun, match="it does not start: no such package"):
        run([job], lambda *_: None, workers=1, cache=tmp_path)


def test_the_environment_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = environment(tmp_path)
    assert "TRITON_INTERPRET" not in found
    assert found["TRITON_CACHE_DIR"] == str(tmp_path)
    assert os.environ["TRITON_INTERPRET"] == "1"
