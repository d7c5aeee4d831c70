"""The memory holds everything that trains at the same time.

In fp32: the student's weights, gradients and two moments of what is trained of them (all, or adapters), the engine's
copy of it, and every teacher that supervises.
Activations and caches come on top and are bounded by micro-batches. Teachers that only answer are open one at a time.
"""

from __future__ import annotations

import os

from distill.preflight import Finding, fine, num_trained, num_weights, reads_tokens, refused
from distill.spec.method import DistillJob
from ttc.config.values import storage


def memory(job: DistillJob) -> Finding:
    """Compare the memory of the device with what is needed."""
    sizes = [num_weights(teacher.folder) for teacher in job.teachers if teacher.folder is not None]
    teachers = sum(sizes) if reads_tokens(job) else max(sizes, default=0)
    student = 2 * num_weights(job.student) + 3 * num_trained(job)
    needed, there = 4 * (student + teachers), _available(job.spec.device)
    text = f"{storage(needed)} of weights and optimiser, {storage(there)} of memory on {job.spec.device}"
    if needed > there:
        adapters = "train adapters (--set train.lora=16)"
        fix = f"{adapters}, take a smaller student or teacher, or put the teacher behind a server"
        return refused(text, fix)
    return fine(text)


def _available(device: str) -> int:
    """Bytes of a GPU, or of the machine."""
    if device != "cpu":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
