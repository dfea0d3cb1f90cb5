"""The name and the driver's UUID of the device that a model computes on."""

import os

import torch


def describe_device(device: torch.device) -> tuple[str, str | None]:
    """Name and UUID as NVML has them ("GPU-…", or "MIG-…" for an instance).

    The UUID is None where the model computes on no GPU; the name is then "CPU". PyTorch reads both
    from the driver once and waits for no work on the device.
    """
    if device.type != "cuda":
        return device.type.upper(), None
    properties = torch.cuda.get_device_properties(device)
    name = str(properties.name)
    if " MIG " in name:
        # A process sees one instance only: the first that the launcher names.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
        return name, visible if visible.startswith("MIG-") else f"MIG-{properties.uuid}"
    return name, f"GPU-{properties.uuid}"
