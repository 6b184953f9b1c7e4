"""What is imported before the fork and what is not; a thread before the fork has a name and stops the start."""

import json
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.spec.model import Architecture, ModelConfig, ModelSpec
from rljob_workers.launcher.launcher import Bodies
from rljob_workers.launcher.parent import serve
from rljob_workers.launcher.preload import ThreadsBeforeForkError, require_single_thread, thread_names
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer


def test_a_second_thread_is_refused_with_the_cure() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert len(thread_names()) >= 2
        with pytest.raises(ThreadsBeforeForkError, match=r"OPENBLAS_NUM_THREADS.* to 1, or load what starts them"):
            require_single_thread()
    finally:
        end.set()
        thread.join()


HEAVY = (
    "sympy", "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "transformers.activations",
    "transformers.modeling_utils", "transformers.models.llama.modeling", "transformers.models.qwen3.modeling",
)  # fmt: skip
"""transformers' modeling code and what comes with it: as much to import as torch itself, and used by nothing here."""

RANK = """
    import json, os, sys
    from rljob_workers.launcher.preload import preload

    from rljob_api.wire.processes import Preloads

    preload(Preloads(tokenizer_in_folder=True))
    known = set(sys.modules)

    # Everything below is what a rank does, after the fork.
    from rljob_api.spec.model import ModelSpec
    from rljob_workers.engines.torch_engine.decoder import geometry_of
    from rljob_workers.models.building import build_config, describing_files, initial_state, torch_dtype
    from rljob_workers.models.tokenizers import build_tokenizer, decode_tokens, encode_prompt
    from rljob_workers.trainers.flat_decoder import rotary_of
    from rljob_workers.trainers.flat_model import FlatScoring
    from rljob_workers.trainers.optimizer_steps import AdamWConfig, FlatAdamW, LearningRate
    import torch

    if os.fork() == 0:
        config = AdamWConfig(LearningRate(1e-3), 0.9, 0.999, 1e-8, weight_decay=0.1, max_grad_norm=1.0)
        FlatAdamW(torch.ones(4), torch.ones(4), 2, config).scale_and_step(0.5)
        for text in sys.argv[1:]:
            model = ModelSpec.model_validate_json(text)
            tokenizer = build_tokenizer(model)
            decode_tokens(tokenizer, encode_prompt(tokenizer, [{"role": "user", "content": "12"}]))
            config, dtype = build_config(model, tokenizer), torch_dtype(model.dtype)
            initial_state(model, tokenizer)
            describing_files(config, dtype, tokenizer)
            rotary_of(config)
            FlatScoring(config, dtype=dtype)
        print(json.dumps([sorted(known), sorted(set(sys.modules) - known)]), flush=True)
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_neither_the_parent_nor_a_rank_imports_modeling_code(tmp_path: Path) -> None:
    made = [ModelSpec(config=ModelConfig(architecture=architecture)) for architecture in Architecture]
    folders = [tmp_path / model.config.architecture for model in made if model.config]
    for folder, model in zip(folders, made, strict=True):
        tokenizer = build_tokenizer(model)
        save_folder(folder, build_config(model, tokenizer), tokenizer, initial_state(model, tokenizer))
    _scale_positions(folders[0] / "config.json")
    models = [*made, *(ModelSpec(path=str(folder)) for folder in folders)]
    command = [sys.executable, "-c", textwrap.dedent(RANK), *(model.model_dump_json() for model in models)]
    parent, rank = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert {"torch", "transformers", "uvicorn", "rljob_workers.roles"} <= set(parent)
    assert [name for name in (*parent, *rank) if name.startswith(HEAVY)] == []
    assert [name for name in rank if name.partition(".")[0] in ("torch", "transformers")] == []


def test_a_parent_of_sharded_models_has_their_code() -> None:
    """Which begins no thread, else the preload itself would raise."""
    code = """
        import sys
        from rljob_api.spec.roles import TrainerBackend
        from rljob_api.wire.processes import Preloads
        from rljob_workers.launcher.preload import preload

        preload(Preloads(frozenset({TrainerBackend.FSDP})))
        known = set(sys.modules)
        from torch.distributed.fsdp import fully_shard
        from transformers import AutoModelForCausalLM
        from rljob_workers.trainers.fsdp.sharded_model import build_sharded
        print(len(set(sys.modules) - known))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) == 0


def _scale_positions(file: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    file.write_text(json.dumps({**json.loads(file.read_text()), "rope_parameters": rope}))


def test_what_cannot_be_imported_ends_the_parent_for_good(capfd: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    ours, theirs = socket.socketpair()
    assert serve(theirs.detach(), Bodies(), load) == EXIT_BAD_MANIFEST
    ours.close()
    message = capfd.readouterr().err
    assert message.count("\n") == 1
    assert (
        "cannot import what a job needs: libcudart.so.13: cannot open shared object file. Mend the install" in message
    )
