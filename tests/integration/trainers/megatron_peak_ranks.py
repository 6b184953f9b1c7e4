"""One rank of a gang that measures what memory the weights of a Megatron decoder take on their way in and out."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_api.spec.parallelism import ParallelismSpec
from rljob_workers.models.building import model_config
from rljob_workers.trainers.allocator import return_freed_memory
from rljob_workers.trainers.data_parallel import DataParallelGroup
from rljob_workers.trainers.megatron import weights
from rljob_workers.trainers.megatron.decoder import Decoder, DecoderOptions
from rljob_workers.trainers.megatron.weights import Export, load_folder
from tests.integration.trainers.worlds import as_rank
from tests.own_memory import peak_of

BUCKET_BYTES = 16 << 20


def main(folder: Path, group: DataParallelGroup, _: DeviceMesh, layout: str, dtype: str) -> None:
    return_freed_memory()  # what is measured is what is in use, and no hole in what a C library retains
    weights.BUCKET_BYTES = BUCKET_BYTES  # of a model that is small beside the usual ones
    source = folder.parent / "model"
    options = DecoderOptions(ParallelismSpec(**json.loads(layout)), getattr(torch, dtype))
    decoder = Decoder(model_config(json.loads((source / "config.json").read_text())), options, group)
    held = 0
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.values.zero_()  # until then they have no memory
            held += parameter.values.nbytes
    taken = peak_of(lambda: load_folder(decoder, source))[1]
    export = Export(decoder, options.dtype, group)

    def publish() -> int:
        """The bytes of the largest bucket; each is gone when the next comes."""
        largest = 0
        for bucket in export.buckets():
            largest = max(largest, sum(tensor.nbytes for tensor in bucket.tensors.values()))
            del bucket
        return largest

    largest, given = peak_of(publish)
    found = {"parameters": held, "import": taken, "export": given, "bucket": largest}
    (folder / f"rank{group.rank}.json").write_text(json.dumps(found))
    group.add_up(torch.zeros(1), "what all ranks have measured")  # where nothing is gathered no rank waits for another


if __name__ == "__main__":
    as_rank(main)
