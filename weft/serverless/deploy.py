"""What goes to the cloud: an archive with the function and the two libraries that it needs, and who may call it."""

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
MEMORY_MB = 1769  # one processor
TIMEOUT_SECONDS = 900
MOST_UPLOAD_BYTES = 50_000_000  # of an archive that is not taken from a bucket
PROCESSORS = {"x86_64": "x86_64", "arm64": "aarch64"}  # by what the cloud calls them
GLIBC = ("2_34", "2_28", "2_27", "2_17")  # what the function's system, which has 2.34, can run
PYTHON = "3.12"


def build_archive(out: Path, architecture: str) -> int:
    """Writes the archive; its size in bytes. Times are fixed, so that the same versions give the same bytes."""
    if architecture not in PROCESSORS:
        raise UserError(f"architecture {architecture} is not known: choose {' or '.join(PROCESSORS)}")
    with tempfile.TemporaryDirectory() as folder:
        needs = [f"{name}=={version(name)}" for name in ("numpy", "pyzmq")]
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
            "--target", folder, "--python-version", PYTHON, "--only-binary=:all:",
        ]  # fmt: skip
        for version_of in GLIBC:
            command += ["--platform", f"manylinux_{version_of}_{PROCESSORS[architecture]}"]
        command += needs
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"the libraries of the function cannot be fetched for {architecture}: {last}")
        files = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*") if path.is_file()}
        files = {name: path for name, path in files.items() if not _spare(name)}
        for path in Path(weft_function.__path__[0]).glob("*.py"):
            files[f"weft_function/{path.name}"] = path
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(out.name + ".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, files[name].read_bytes())
        partial.replace(out)
    return out.stat().st_size


def _spare(name: str) -> bool:
    """Files of the libraries that a function never reads."""
    return "/tests/" in name or name.startswith("bin/") or name.endswith((".pyi", ".pyc", ".h"))


def invoke_policy(function: str) -> str:
    """What a graph server must be allowed to do, and nothing else."""
    statement = {
        "Effect": "Allow",
        "Action": "lambda:InvokeFunction",
        "Resource": f"arn:aws:lambda:REGION:ACCOUNT:function:{function}",
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)


def trust_policy() -> str:
    """Who may take the function's own role, which allows it nothing."""
    statement = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def commands(archive: Path, function: str, architecture: str) -> list[str]:
    """What to type, once."""
    role = f"{function}-function"
    return [
        f"aws iam create-role --role-name {role} --assume-role-policy-document '{trust_policy()}'",
        f"aws lambda create-function --function-name {function} --runtime python{PYTHON} --handler {HANDLER} "
        f"--architectures {architecture} --memory-size {MEMORY_MB} --timeout {TIMEOUT_SECONDS} "
        f"--role arn:aws:iam::ACCOUNT:role/{role} --zip-file fileb://{archive}",
        f"aws lambda put-function-event-invoke-config --function-name {function} --maximum-retry-attempts 0",
    ]
