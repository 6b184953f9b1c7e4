"""Imports SGLang for servers without a GPU, so that each costs a fork (1 s) and not an import (14 CPU-seconds).

Called by the launcher's parent before anything is forked, for jobs with such servers, and by `serving` where nobody
has. Imports only: no tensor, no thread, no CUDA. What it changes of SGLang holds for this process and its forks.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
}

_STAND_IN = "rljob_workers.engines.sglang.cpu.sgl_kernel"

_MODULES = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.model_loader.loader",
    "sglang.srt.models.registry",
)


def preload_sglang() -> None:
    """Imports it with our stand-in for its kernels; does nothing the second time."""
    if _MODULES[-1] in sys.modules:
        return
    os.environ.update(_ENVIRONMENT)
    logging.disable(logging.WARNING)  # a line for each family of models that wants more of the kernels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the libraries: nobody here can act on them
        sys.modules["sgl_kernel"] = importlib.import_module(_STAND_IN)
        for name in _MODULES:
            importlib.import_module(name)
        _allow_seeds()
    logging.disable(logging.NOTSET)


def _allow_seeds() -> None:
    """Lets `--enable-deterministic-inference` run on plain torch: only there does SGLang heed a sampling seed.

    It refuses that backend, and a prefix cache with it, and would replace matrix products by kernels for GPUs. On a CPU
    a row's sums do not depend on its batch beyond rounding, so that a seed fixes its tokens all the same.
    """
    from sglang.srt import batch_invariant_ops
    from sglang.srt.arg_groups import choices

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    batch_invariant_ops.enable_batch_invariant_mode = lambda *_, **__: None
