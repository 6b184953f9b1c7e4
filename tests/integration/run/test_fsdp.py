"""Jobs of the backend Fsdp: four ranks over two pods, gone on with by one rank and by Flat; what they save."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.run.job import RunningJob, at_leisure, make_manifest
from tests.integration.run.test_models import save_model


@pytest.mark.long  # test_checkpoint_commands trains by two
def test_a_folders_model_is_trained_by_four_ranks_then_by_one_then_by_flat(tmp_path: Path) -> None:
    """Each goes on with what the one before it saved, reference version included, which each rank kept a part of."""
    model = save_model(tmp_path / "model", factor=1.0)
    (model / "generation_config.json").write_text('{"temperature": 0.7, "do_sample": true}')
    shapes: list[dict[str, Any]] = [{"replicas": 2, "ranksPerPod": 2}, {}, {"backend": "Flat"}]

    def manifest(actor: dict[str, Any], *, last: bool) -> dict[str, Any]:
        training = {"microBatchSize": 8, "maxTokensPerMicroBatch": 48}
        made = make_manifest(tmp_path, rollout={"numRollouts": 12}, roles={"actor": actor}, training=training)
        made["spec"]["model"] = {"path": str(model)}
        return made if last else at_leisure(made, tmp_path)

    with RunningJob(tmp_path, manifest(shapes[0], last=False)) as job:
        for number, shape in enumerate(shapes):
            if number:
                job.rewrite(manifest(shape, last=number == 2))
                job.start()
            if number < 2:
                job.wait_for_step(job.step() + 2)
                job.interrupt()
                _check_policy(job.out / "checkpoints", ranks=(4, 1)[number])
        job.assert_succeeded()
        assert {line["epoch"] for line in job.metrics()} == {1, 2, 3}
        late = [
            line["policy/kl_reference"] for line in job.metrics() if line["step"] > 2
        ]  # about 0.02 to 0.06: it goes on growing
        assert all(0.003 < kl < 0.5 for kl in late), f"rows were measured against another version: {late}"


def _check_policy(checkpoints: Path, *, ranks: int) -> None:
    """What is saved is a folder that transformers loads, whole."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = checkpoints / json.loads((checkpoints / "record.json").read_text())["folder"]
    assert len(list(folder.glob("model*.safetensors"))) == len(list(folder.glob("actor-*.safetensors"))) == ranks
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    policy, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert policy.dtype == torch.float32
    assert GenerationConfig.from_pretrained(folder).temperature == 0.7
    assert AutoTokenizer.from_pretrained(folder).chat_template
