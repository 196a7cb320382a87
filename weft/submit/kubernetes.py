"""The manifests that run a job under Kubernetes: a headless Service, a ConfigMap with the settings, and an Indexed Job.

A Job's template cannot be changed, and a Job that has ended does not start again. So its name is left to the cluster
(generateName): every `kubectl create` makes another Job, whose pods go on with the run. The Service and the settings
stay as they are; the name of the settings is made of what they say, so that no Job sees those of another.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from weft import __version__
from weft.errors import UserError
from weft.submit.job import MEETING_SECONDS, ClusterJob, is_data_set, seconds_of
from weft.submit.programs import call

PORT = 29400
SETTINGS_FOLDER, SETTINGS = "/config", "config.yaml"
RUN_LABEL, ROLE_LABEL = "weft/run", "weft/role"
SHARED, STARTED = "shared", "job"  # what all Jobs of a run use, and what a start of it makes

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Pods:
    """What Kubernetes is to be told beside what a run needs."""

    image: str = f"weft:{__version__}"
    claim: str = "weft-data"  # PersistentVolumeClaim that all pods can write
    mount: str = "/shared"  # where pods see it
    interface: str = "eth0"
    retries: int = 3  # of every pod
    time: str | None = None  # after which the Job is ended, in which the run does not go on by itself


def manifests(job: ClusterJob, pods: Pods) -> list[Manifest]:
    """The Service, the ConfigMap, and the Job."""
    _check_mount(job, pods.mount)
    settings = f"{job.name}-{hashlib.sha256(job.settings.encode()).hexdigest()[:10]}"
    service = {
        **_head("v1", "Service", job, SHARED, {"name": job.name}),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # pods must find each other before they are ready
            "selector": {RUN_LABEL: job.name},
        },
    }
    config = {
        **_head("v1", "ConfigMap", job, SHARED, {"name": settings}),
        "immutable": True,
        "data": {SETTINGS: job.settings},
    }
    return [service, config, _job(job, pods, settings)]


def as_text(found: list[Manifest], about: str = "") -> str:
    """Manifests as one file."""
    documents = [yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=120) for one in found]
    return "".join(f"# {line}\n" for line in about.splitlines()) + "---\n".join(documents)


def create(found: list[Manifest], namespace: str | None = None) -> str:
    """Makes what is shared, where it is not there yet, and another Job; returns what Kubernetes says."""
    where = [] if namespace is None else ["--namespace", namespace]
    shared = [one for one in found if one["metadata"]["labels"][ROLE_LABEL] == SHARED]
    started = [one for one in found if one["metadata"]["labels"][ROLE_LABEL] == STARTED]
    missing = ("no Job can be made from here", "run this where kubectl is")
    said = [
        call(["kubectl", verb, *where, "-f", "-"], as_text(one), *missing)
        for verb, one in (("apply", shared), ("create", started))
    ]
    return "\n".join(said)


def _head(version: str, kind: str, job: ClusterJob, role: str, name: Mapping[str, str]) -> Manifest:
    labels = {RUN_LABEL: job.name, ROLE_LABEL: role}
    return {"apiVersion": version, "kind": kind, "metadata": {**name, "labels": labels}}


def _job(job: ClusterJob, pods: Pods, settings: str) -> Manifest:
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": job.hosts,
        "parallelism": job.hosts,  # all at once: a run needs all of its workers
        "backoffLimit": pods.retries * job.hosts,  # where one pod fails the others do, too, and count as well
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
    }
    if pods.time is not None:
        spec["activeDeadlineSeconds"] = seconds_of(pods.time)
    spec["template"] = {
        "metadata": {"labels": {RUN_LABEL: job.name}},
        "spec": {
            "subdomain": job.name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": MEETING_SECONDS,  # for the checkpoint
            "containers": [_container(job, pods)],
            "volumes": [
                {"name": "config", "configMap": {"name": settings}},
                {"name": "data", "persistentVolumeClaim": {"claimName": pods.claim}},
            ],
        },
    }
    return {**_head("batch/v1", "Job", job, STARTED, {"generateName": f"{job.name}-"}), "spec": spec}


def _container(job: ClusterJob, pods: Pods) -> Manifest:
    memory = f"{job.memory_mib}Mi"
    limits: Manifest = {"memory": memory}
    if job.gpus_each:
        limits["nvidia.com/gpu"] = str(job.gpus_each)
    variables = {"GLOO_SOCKET_IFNAME": pods.interface, "NCCL_SOCKET_IFNAME": pods.interface, **job.variables()}
    program, *words = job.torchrun()
    return {
        "name": "worker",
        "image": pods.image,
        "command": [program],
        "args": [
            *words,
            "--node-rank=$(JOB_COMPLETION_INDEX)",
            f"--master-addr=$(JOB_NAME)-0.{job.name}",
            f"--master-port={PORT}",
            "-m",
            "--",
            "weft",
            "train",
            f"{SETTINGS_FOLDER}/{SETTINGS}",
            "--resume",
        ],
        "env": [
            _from_field("JOB_COMPLETION_INDEX", "annotations['batch.kubernetes.io/job-completion-index']"),
            _from_field("JOB_NAME", "labels['batch.kubernetes.io/job-name']"),
            *({"name": name, "value": value} for name, value in variables.items()),
        ],
        "ports": [{"name": "meeting", "containerPort": PORT}],
        "resources": {
            "requests": {"cpu": str(job.workers_each * job.threads), "memory": memory},
            "limits": limits,
        },
        "volumeMounts": [
            {"name": "config", "mountPath": SETTINGS_FOLDER},
            {"name": "data", "mountPath": pods.mount},
        ],
    }


def _from_field(name: str, field: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}


def _check_mount(job: ClusterJob, mount: str) -> None:
    """Refuses paths that lie in no volume: what is written there is gone with the pod, and no other pod sees it."""
    if not os.path.isabs(mount) or os.path.normpath(mount) in ("/", SETTINGS_FOLDER):
        raise UserError(f"--mount is {mount}: give the whole path of a folder of its own, such as /shared")
    paths = {"run": job.run}
    if not is_data_set(job.data):
        paths["data"] = job.data
    for key, path in paths.items():
        if os.path.commonpath([os.path.normpath(path), os.path.normpath(mount)]) != os.path.normpath(mount):
            raise UserError(
                f"{key} is {path}, which does not lie in {mount}, where pods see the volume that they share: give a "
                "path in it, or --mount"
            )


class _Dumper(yaml.SafeDumper):
    """YAML as people write manifests: lists indented, texts of several lines as blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
