"""Deployment of the cloud function: its archive, the commands that create it, and the permissions it needs."""

import json
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import weft_function
from weft.errors import UserError

HANDLER = "weft_function.cloud.handler"
MEMORY_MB = 1769  # the memory that comes with one processor
TIMEOUT_SECONDS = 900
MAX_UPLOAD_BYTES = 50_000_000  # of an archive that is not uploaded through a bucket
PROCESSORS = {"x86_64": "x86_64", "arm64": "aarch64"}  # by the cloud's names of them
GLIBC = ("2_34", "2_28", "2_27", "2_17")  # versions that the function's system, which has 2.34, can run
PYTHON = "3.12"
FIXED_TIME = (2020, 1, 1, 0, 0, 0)


def build_archive(out: Path, architecture: str) -> int:
    """Writes the archive and returns its size. Times in it are fixed, so that equal versions give equal bytes."""
    if architecture not in PROCESSORS:
        raise UserError(f"architecture {architecture} is not known: choose {' or '.join(PROCESSORS)}")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
            "--target", folder, "--python-version", PYTHON, "--only-binary=:all:",
        ]  # fmt: skip
        for glibc in GLIBC:
            command += ["--platform", f"manylinux_{glibc}_{PROCESSORS[architecture]}"]
        command.append(f"numpy=={version('numpy')}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"the libraries of the function cannot be fetched for {architecture}: {last}")
        files = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*") if path.is_file()}
        files = {name: path for name, path in files.items() if not _is_unused(name)}
        for path in Path(weft_function.__path__[0]).glob("*.py"):
            files[f"weft_function/{path.name}"] = path
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(out.name + ".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, FIXED_TIME)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, files[name].read_bytes())
        partial.replace(out)
    return out.stat().st_size


def _is_unused(name: str) -> bool:
    """Whether a function never reads this file of a library."""
    return "/tests/" in name or name.startswith("bin/") or name.endswith((".pyi", ".pyc", ".h"))


def invoke_policy(function: str) -> str:
    """The only permission that a graph server needs."""
    statement = {
        "Effect": "Allow",
        "Action": "lambda:InvokeFunction",
        "Resource": f"arn:aws:lambda:REGION:ACCOUNT:function:{function}",
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)


def trust_policy() -> str:
    """Lets Lambda assume the function's role, which grants no permissions."""
    statement = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def commands(archive: Path, function: str, architecture: str) -> list[str]:
    """The commands that create the function."""
    role = f"{function}-function"
    return [
        f"aws iam create-role --role-name {role} --assume-role-policy-document '{trust_policy()}'",
        f"aws lambda create-function --function-name {function} --runtime python{PYTHON} --handler {HANDLER} "
        f"--architectures {architecture} --memory-size {MEMORY_MB} --timeout {TIMEOUT_SECONDS} "
        f"--role arn:aws:iam::ACCOUNT:role/{role} --zip-file fileb://{archive}",
        f"aws lambda put-function-event-invoke-config --function-name {function} --maximum-retry-attempts 0",
    ]
