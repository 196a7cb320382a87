"""Runs under a scheduler of other machines: what they need, the script or the manifests that start them."""

from weft.submit.job import ClusterJob, Hosts, plan_job, seconds_of
from weft.submit.kubernetes import Pods, create, manifests
from weft.submit.slurm import Limits, script, submit

__all__ = [
    "ClusterJob",
    "Hosts",
    "Limits",
    "Pods",
    "create",
    "manifests",
    "plan_job",
    "script",
    "seconds_of",
    "submit",
]
