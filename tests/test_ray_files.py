"""The documented cluster files are what Ray's launcher and KubeRay accept, with a Ray that the program runs on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from ablations.submit.jobserver import NEXT, OLDEST

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DOCS / name).read_text()))


def test_the_cluster_launcher_takes_the_file() -> None:
    import ray

    (document,) = documents("cluster.yaml")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(document, schema)

    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(document))  # the launcher's own look, which knows more than the schema


def test_kuberay_takes_the_file_and_every_pod_mounts_the_claim_at_one_path() -> None:
    cluster, claim = documents("kuberay.yaml")
    jsonschema.validate(cluster, json.loads((TESTS / "kuberay_schema.json").read_text()))
    assert OLDEST <= tuple(int(part) for part in cluster["spec"]["rayVersion"].split(".")[:2]) < NEXT
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    mounted = set()
    for pod in (group["template"]["spec"] for group in groups):
        volumes = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            mounted |= {(volumes[mount["name"]], mount["mountPath"]) for mount in container["volumeMounts"]}
    assert mounted == {(claim["metadata"]["name"], "/shared")}
