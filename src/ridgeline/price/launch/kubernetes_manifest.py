"""The Kubernetes manifest of a priced configuration: a Deployment of vLLM and its Service."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ridgeline.price.launch.engine_limits import Flags
from ridgeline.price.launch.launch_config import LaunchConfig
from ridgeline.price.launch.vllm_flags import VERSION

_PORT = 8000
_LONGEST_NAME = 63  # of a label (RFC 1123)
_GPUS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "NVIDIA": ("nvidia.com/gpu", f"vllm/vllm-openai:v{VERSION}"),
        "AMD": ("amd.com/gpu", f"vllm/vllm-openai-rocm:v{VERSION}"),
    }
)
"""The resource name of the device plugin and the image of vLLM, by the maker of a GPU."""

_MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {replicas}
  selector:
    matchLabels:
      app: {name}
  template:
    metadata:
      labels:
        app: {name}
    spec:
      containers:
        - name: vllm
          image: {image}
          command: ["vllm", "serve"]
          args:
{arguments}
          ports:
            - containerPort: {port}
          env:
            # for repositories with a licence to accept: kubectl create secret generic hf-token --from-literal=token=...
            - name: HF_TOKEN
              valueFrom:
                secretKeyRef:
                  name: hf-token
                  key: token
                  optional: true
          resources:
            limits:
              {resource}: {devices}
          readinessProbe:
            httpGet:
              path: /health
              port: {port}
          volumeMounts:
            # several GPUs exchange data in shared memory
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: shared-memory
          emptyDir:
            medium: Memory
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector:
    app: {name}
  ports:
    - port: {port}
      targetPort: {port}"""


def manifest(config: LaunchConfig, flags: Flags) -> str:
    """Return a Deployment with one pod per replica and a Service before them, in YAML.

    Args:
        config: The configuration.
        flags: The flags of `vllm serve`.

    Raises:
        ValueError: If no resource name is known for the GPU, or if the model is not a repository.
    """
    device = config.case.device
    if device.maker not in _GPUS:
        raise ValueError(
            f"--emit kubernetes knows the GPUs of {' and '.join(_GPUS)}, not {device.title}; emit vllm instead"
        )
    if Path(config.model).exists():
        raise ValueError(
            f"--emit kubernetes: a pod cannot load the local {config.model}; give the name of a repository as MODEL"
        )
    resource, image = _GPUS[device.maker]
    name = _label(f"vllm-{config.model.rpartition('/')[2]}")
    words = [config.model, "--port", str(_PORT), *(word for flag in flags for word in flag)]
    arguments = "\n".join(f"            - {json.dumps(word)}" for word in words)
    return _MANIFEST.format(
        name=name,
        replicas=config.replicas,
        image=image,
        arguments=arguments,
        port=_PORT,
        resource=resource,
        devices=config.case.setup.devices,
    )


def _label(text: str) -> str:
    """Return a text as a name of Kubernetes: lower-case letters, digits and hyphens, at most 63."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:_LONGEST_NAME].strip("-")
