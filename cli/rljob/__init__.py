"""The Python door: jobs from a file or a dict, started and followed as the command `rljob run` does it.

job = Job.from_file("job.yaml", {"training.optimizer.learningRate": 1e-6})
with run(job) as going:
    for step in going:
        print(step["step"], step["reward"])
print(going.result().reason)
load_run("rljob-out/job").to_pandas()

For scripts and notebooks. A run is a process of its own, the command: this package holds nothing of it that the run
folder and that process do not have. docs/python.md is its page.
"""

from rljob.files import RunFiles, load_run
from rljob.job import Job
from rljob.running import Result, Run, run
from rljob_api.manifest import ManifestError

__all__ = ["Job", "ManifestError", "Result", "Run", "RunFiles", "load_run", "run"]
