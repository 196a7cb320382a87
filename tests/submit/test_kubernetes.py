"""Manifests of runs: as Kubernetes' published schema has them, and whole in themselves."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from torch.distributed.run import get_args_parser

from tests.submit.kubernetes_schema import schema_of
from tests.submit.submitting import stand_in
from weft.config import make_config
from weft.errors import UserError
from weft.submit import Hosts, Pods, create, manifests, plan_job

SETTINGS: dict[str, Any] = {"data": "/shared/parts", "run": "/shared/runs/First Run", "workers": 8}


def made(pods: Pods | None = None, **settings: Any) -> list[dict[str, Any]]:
    """Service, ConfigMap and Job, as they come out of a file."""
    job = plan_job(SETTINGS | settings, Hosts(count=2, memory="10G"))
    return manifests(job, pods or Pods())


def mistakes(manifest: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(schema_of(manifest["kind"])).iter_errors(manifest)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("time", [None, "2d"])
def test_manifests_are_as_the_published_schema_has_them(device: str, time: str | None) -> None:
    found = made(Pods(time=time), device=device)
    assert [one["kind"] for one in found] == ["Service", "ConfigMap", "Job"]
    for manifest in found:
        assert mistakes(manifest) == []


def test_the_schema_refuses_what_is_wrong() -> None:
    *_, job = made()
    for path, value in (
        (["spec", "completionz"], 2),
        (["spec", "completions"], "2"),
        (["spec", "template", "spec", "containers", 0, "resources", "requests", "memory"], {}),
        (["spec", "template", "spec", "terminationGracePeriod"], 120),
    ):
        wrong = copy.deepcopy(job)
        place: Any = wrong
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert mistakes(wrong), path


def test_a_job_is_whole() -> None:
    service, config, job = made(device="cuda")
    pod, spec = job["spec"]["template"]["spec"], job["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert pod["subdomain"] == service["metadata"]["name"] == "weft-first-run"
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    assert spec["backoffLimit"] == 6 and pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["command"] == ["torchrun"]
    given = {"JOB_COMPLETION_INDEX": "1", "JOB_NAME": "weft-first-run-x7k2p"}
    fields = {one["name"] for one in container["env"] if "valueFrom" in one}
    assert fields == set(given)
    args = container["args"]
    for name, value in given.items():
        args = [argument.replace(f"$({name})", value) for argument in args]
    parsed = get_args_parser().parse_args(args)
    assert parsed.module and parsed.training_script == "weft"
    assert parsed.training_script_args == ["train", "/config/config.yaml", "--resume"]
    assert (int(parsed.nnodes), int(parsed.nproc_per_node), parsed.node_rank) == (2, 4, 1)
    assert parsed.master_addr == "weft-first-run-x7k2p-0.weft-first-run"
    assert parsed.master_port == container["ports"][0]["containerPort"]
    assert parsed.shutdown_timeout < pod["terminationGracePeriodSeconds"] == 120
    resources = container["resources"]
    assert resources["requests"] == {"cpu": "16", "memory": "10240Mi"}
    assert resources["limits"] == {"memory": "10240Mi", "nvidia.com/gpu": "4"}
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    settings = make_config(yaml.safe_load(config["data"]["config.yaml"]))
    assert (settings.run, settings.workers, settings.threads) == (SETTINGS["run"], 8, 4)


def test_each_start_makes_another_job_and_other_settings_have_another_name() -> None:
    (service, config, job), (again, other, _) = made(), made(seed=5)
    assert "name" not in job["metadata"] and job["metadata"]["generateName"] == "weft-first-run-"
    assert service == again and config["immutable"]
    assert config["metadata"]["name"] != other["metadata"]["name"]
    assert made()[1] == config


def test_what_is_shared_is_applied_and_the_job_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin", "kubectl", f'echo "$@" >> {tmp_path}/calls; cat > {tmp_path}/$1.yaml; echo did $1')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    found = made()
    assert create(found, "mine") == "did apply\ndid create"
    assert (tmp_path / "calls").read_text() == "apply --namespace mine -f -\ncreate --namespace mine -f -\n"
    assert list(yaml.safe_load_all((tmp_path / "apply.yaml").read_text())) == found[:2]
    assert list(yaml.safe_load_all((tmp_path / "create.yaml").read_text())) == found[2:]
    stand_in(tmp_path / "bin", "kubectl", "echo the server is down >&2; exit 1")
    with pytest.raises(UserError, match="kubectl apply failed: the server is down"):
        create(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no kubectl"):
        create(found)


@pytest.mark.parametrize(
    ("pods", "settings", "words"),
    [
        (Pods(mount="/data"), {}, "run is /shared/runs/First Run, which does not lie in /data"),
        (Pods(), {"run": "/sharedruns/a"}, "does not lie in /shared"),
        (Pods(), {"run": "/shared/../etc/a"}, "does not lie in /shared"),
        (Pods(), {"data": "/elsewhere/parts"}, "data is /elsewhere/parts"),
        (Pods(mount="data"), {}, "give the whole path"),
        (Pods(mount="/config"), {}, "of a folder of its own"),
        (Pods(time="soon"), {}, "'soon' is no time limit"),
    ],
)
def test_mistakes_are_one_sentence(pods: Pods, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        made(pods, **settings)
