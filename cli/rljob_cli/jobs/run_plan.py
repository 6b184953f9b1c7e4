"""Plans what `rljob run` would start: processes, devices, settings, and how full each device would be.

Pure. Made for --dry-run from the job and from what was read for it; `ui.plan` makes text of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic.alias_generators import to_camel

from rljob_api.machine.devices import MachineDevices
from rljob_api.machine.memory import (
    Pass,
    ProcessMemory,
    engine_memory,
    forward_memory,
    kv_bytes_per_token,
    trainer_memory,
)
from rljob_api.machine.parallel_memory import RankPart, laid_out_forward_memory, laid_out_trainer_memory
from rljob_api.model_files.size import ModelShape, critic_shape, fitting_interval, model_shape, reference_shape
from rljob_api.names import Role, Stream
from rljob_api.rank_places import RankPlace, bubble_share, place_of
from rljob_api.roles import LEADING_ROLE, PROXIMAL_ROLE, REFERENCE_ROLE, TRAITS, VALUE_ROLE, RoleTopology
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.spec.parallelism import ParallelismSpec
from rljob_api.spec.roles import BACKENDS, ModelRoleSpec, RoleSpec
from rljob_api.wire.identity import PodKey
from rljob_cli.checks.row_lengths import RowLengths
from rljob_operator.local.device_placement import PodDevices, placement_order


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """A rank or an engine."""

    name: str
    """As its log is named."""
    pod: str
    devices: tuple[str, ...]
    """None: it computes on the CPU."""
    settings: dict[str, Any]
    """Its resolved settings; keys as in JSON."""
    memory: ProcessMemory | None
    """None: it computes no model."""
    place: RankPlace | None = None
    """The place of a rank whose backend lays a model out over ranks."""


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """A device that processes use, or the host where they use none."""

    name: str
    memory_bytes: int | None
    """None where it is unknown."""
    processes: tuple[str, ...]
    needed_bytes: int
    kv_tokens: int | None
    """Tokens whose keys and values fit into what is left; None without an engine, or where it is unknown."""

    @property
    def left_bytes(self) -> int | None:
        """Below 0: it does not fit."""
        return None if self.memory_bytes is None else self.memory_bytes - self.needed_bytes


@dataclass(frozen=True, slots=True)
class PipelineBubbles:
    """The time that the stages of a role's pipelines wait for each other."""

    role: str
    parallelism: ParallelismSpec
    micro_batches: int
    """Micro-batches of a slice, or of a claim, on each model: each of these is a schedule of its own."""
    share: float
    """The bubbles' share of the time of a schedule."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All of it; with autoscaling, of as many rollouts as there may be."""

    job: str
    num_pods: int
    source: str
    """Where the devices are known from."""
    num_devices: int
    """Devices that the machine has."""
    rows: RowLengths
    processes: tuple[PlannedProcess, ...]
    devices: tuple[PlannedDevice, ...]
    bubbles: tuple[PipelineBubbles, ...] = ()


@dataclass(frozen=True, slots=True)
class _Job:
    """A job with everything that its processes are planned from."""

    spec: RLJobSpec
    shapes: ModelShapes
    rows: RowLengths

    @property
    def shape(self) -> ModelShape:
        return self.shapes.policy


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """Shapes of the models of a job."""

    policy: ModelShape
    critic: ModelShape
    """Where there is none, of the one that it would have."""
    reference: ModelShape
    """The reference's."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> ModelShapes:
        """Reads them for a job with absolute paths. ValueError, with a sentence, where files cannot be read."""
        policy = model_shape(spec.model)
        return cls(policy, critic_shape(spec, policy), reference_shape(spec, policy))


def run_plan(job: RLJob, machine: MachineDevices, placed: PodDevices, shapes: ModelShapes, rows: RowLengths) -> RunPlan:
    """The plan. `placed` is where the pods' devices are."""
    planned = _Job(job.spec, shapes, rows)
    present = job.spec.roles.present()
    processes = tuple(
        process
        for role in placement_order()
        if role in present
        for replica in range(present[role].most_replicas)
        for process in _of_pod(planned, present[role], PodKey(role=role, replica=replica), placed)
    )
    devices = tuple(_devices(planned, machine, processes))
    num_pods = sum(job.spec.roles.most_replicas().values())
    return RunPlan(
        job.metadata.name,
        num_pods,
        machine.source,
        len(machine.devices),
        rows,
        processes,
        devices,
        tuple(_bubbles(planned)),
    )


def plan_json(plan: RunPlan) -> dict[str, Any]:
    """As `--output json` prints it."""
    return {
        "kind": "plan",
        "name": plan.job,
        "pods": plan.num_pods,
        "devicesBy": plan.source,
        "promptTokens": plan.rows.prompt,
        "responseTokens": plan.rows.response,
        "processes": [
            {
                "name": process.name,
                "pod": process.pod,
                "devices": process.devices,
                "settings": process.settings,
                "memory": None if process.memory is None else process.memory.by_part,
                "place": None if process.place is None else asdict(process.place),
            }
            for process in plan.processes
        ],
        "devices": [
            {
                "name": device.name,
                "memoryBytes": device.memory_bytes,
                "neededBytes": device.needed_bytes,
                "leftBytes": device.left_bytes,
                "kvTokens": device.kv_tokens,
                "processes": device.processes,
            }
            for device in plan.devices
        ],
        "bubbles": [{"role": one.role, "microBatches": one.micro_batches, "share": one.share} for one in plan.bubbles],
    }


def _of_pod(job: _Job, role: RoleSpec, pod: PodKey, placed: PodDevices) -> Iterator[PlannedProcess]:
    """Its ranks, and its engines."""
    topology, devices = job.spec.roles.topology(pod.role), placed.get(pod, ())
    share = len(devices) // topology.ranks_per_pod
    is_laid_out = isinstance(role, ModelRoleSpec) and BACKENDS[job.spec.backend_of(pod.role)].lays_out
    for rank in range(topology.ranks_per_pod):
        own = devices[rank * share : (rank + 1) * share]
        of_role = topology.ranks_of(pod.replica)[rank]
        settings, memory = _work_of(pod.role)(job, role, topology, of_role)
        if not topology.engines:
            place = _place(job.spec, pod.role, of_role) if is_laid_out else None
            yield PlannedProcess(f"{pod}.{rank}", str(pod), own, settings, memory, place)
            continue
        yield PlannedProcess(f"{pod}.{rank}", str(pod), (), settings, None)
        name = f"{pod}.engine" if topology.engines == 1 else f"{pod}.engine.{rank}"
        yield PlannedProcess(name, str(pod), own, *_engine(job, role))


_Work = tuple[dict[str, Any], ProcessMemory | None]


def _training(job: _Job, role: RoleSpec, topology: RoleTopology, rank: int) -> _Work:
    settings = {
        "backend": job.spec.backend_of(LEADING_ROLE).value,
        "dtype": job.spec.model.dtype.value,
        "headDtype": job.spec.head_dtype.value,
        "rank": rank,
        **_slice(job, LEADING_ROLE, topology),
        "learningRate": job.spec.training.optimizer.learning_rate,
        "checkpointEverySteps": _checkpoint_interval(job),
        "threads": role.threads,
    }
    return settings, _training_memory(job, LEADING_ROLE, job.shape, rank)


def _critic(job: _Job, role: RoleSpec, topology: RoleTopology, rank: int) -> _Work:
    """Its values are computed in micro-batches of the same size, and take less than the pass that trains."""
    own, training = job.spec.roles.critic, job.spec.training
    assert own is not None, "only roles that are there are planned"
    settings = {
        "backend": job.spec.backend_of(VALUE_ROLE).value,
        "model": own.model_path or "the policy with a new head",
        "dtype": job.spec.model.dtype.value,
        "rank": rank,
        **_slice(job, VALUE_ROLE, topology),
        "learningRate": (own.optimizer or training.optimizer).learning_rate,
        "valueClip": own.largest_change,
        "criticOnlySteps": training.critic_only_steps or 0,
        "checkpointEverySteps": _checkpoint_interval(job),
        "threads": role.threads,
    }
    return settings, _training_memory(job, VALUE_ROLE, job.shapes.critic, rank)


def _checkpoint_interval(job: _Job) -> int:
    """Steps between checkpoints, for the whole record by the size of the policy."""
    return job.spec.checkpoint.every_steps or fitting_interval(job.shape.parameters, job.spec.model.dtype)


def _slice(job: _Job, role: Role, topology: RoleTopology) -> dict[str, Any]:
    """How a rank of a role that trains gets and cuts a slice."""
    batches = _batches(job, role)
    return {
        "world": topology.num_ranks,
        **_layout(job, role, topology, batches),
        "rowsOfSlice": batches.share,
        "rowsOfMicroBatch": batches.rows,
        "tokensOfMicroBatch": batches.work.tokens,
        "activationCheckpointing": batches.work.checkpointing,
    }


def _layout(job: _Job, role: Role, topology: RoleTopology, batches: _Batches) -> dict[str, Any]:
    """Settings of a role whose ranks may share a model."""
    if not BACKENDS[job.spec.backend_of(role)].lays_out:
        return {}
    own = job.spec.parallelism_of(role)
    given = {name: getattr(own, name) for name in ParallelismSpec.model_fields if name != "sequence"}
    text = " x ".join(f"{to_camel(name)} {number}" for name, number in given.items() if number > 1)
    return {
        "models": topology.models,
        "parallelism": text or "none",
        "sequence": own.cuts_sequence,
        "microBatchesOfSlice": batches.number,
    }


def _training_memory(job: _Job, role: Role, shape: ModelShape, rank: int) -> ProcessMemory:
    spec, batches = job.spec, _batches(job, role)
    backend = spec.backend_of(role)
    if BACKENDS[backend].lays_out:
        part = _part(spec, role, shape, rank)
        recomputed = spec.training.recompute_modules or ()
        return laid_out_trainer_memory(part, spec.model.dtype, batches.work, batches.number, recomputed)
    return trainer_memory(shape, backend, spec.model.dtype, spec.roles.topology(role).num_ranks, batches.work)


def _part(spec: RLJobSpec, role: Role, shape: ModelShape, rank: int) -> RankPart:
    ranks = spec.roles.topology(role).ranks_per_gang
    return RankPart(shape, spec.parallelism_of(role), _place(spec, role, rank).pipeline, ranks)


def _place(spec: RLJobSpec, role: Role, rank: int) -> RankPlace:
    """Gangs of a role, where it has several, have a model each: they are counted as its data parallelism."""
    ranks = spec.roles.topology(role).ranks_per_gang
    within = place_of(rank % ranks, ranks, spec.parallelism_of(role))
    return replace(within, data=within.data + rank // ranks)


def _log_probs(job: _Job, role: RoleSpec, topology: RoleTopology, rank: int) -> _Work:
    return _scoring(job, role, topology, rank, PROXIMAL_ROLE)


def _scoring(job: _Job, given: RoleSpec, topology: RoleTopology, rank: int, role: Role) -> _Work:
    spec, batches, backend = job.spec, _batches(job, role), job.spec.backend_of(role)
    is_laid_out, shards = BACKENDS[backend].lays_out, topology.ranks_per_gang
    settings = {
        "backend": backend.value,
        "dtype": spec.model.dtype.value,
        "headDtype": spec.head_dtype.value,
        "rank": rank,
        "world": topology.num_ranks,
        **(_layout(job, role, topology, batches) if is_laid_out else {"shards": shards}),
        "rowsOfMicroBatch": batches.rows,
        "tokensOfMicroBatch": batches.work.tokens,
        "threads": given.threads,
    }
    if is_laid_out:
        return settings, laid_out_forward_memory(_part(spec, role, job.shape, rank), spec.model.dtype, batches.work)
    return settings, forward_memory(job.shape, backend, spec.model.dtype, batches.work, shards)


def _reference(job: _Job, role: RoleSpec, topology: RoleTopology, rank: int) -> _Work:
    """As actor_fwd, of its own model."""
    of_its_model = replace(job, shapes=replace(job.shapes, policy=job.shapes.reference))
    settings, memory = _scoring(of_its_model, role, topology, rank, REFERENCE_ROLE)
    given = job.spec.roles.reference
    teacher = None if given is None else given.model_path
    return (settings if teacher is None else {"model": teacher, **settings}), memory


def _generation(job: _Job, role: RoleSpec, topology: RoleTopology, rank: int) -> _Work:
    del role
    sampling = job.spec.rollout.sampling
    settings = {
        "rank": rank,
        "world": topology.num_ranks,
        "samplesPerPrompt": job.spec.rollout.samples_per_prompt,
        "maxNewTokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
    }
    return settings, None


def _advantages(job: _Job, role: RoleSpec, topology: RoleTopology, rank: int) -> _Work:
    settings = {"rank": rank, "world": topology.num_ranks, "advantage": str(job.spec.algorithm.advantage)}
    return {**settings, "threads": role.threads}, None


def _engine(job: _Job, role: RoleSpec) -> _Work:
    engine, dtype = job.spec.roles.rollout.engine, job.spec.model.dtype
    settings: dict[str, Any] = {
        "engine": engine.kind.value,
        "dtype": dtype.value,
        "headDtype": job.spec.head_dtype.value,
        "threads": role.threads,
    }
    if engine.traits.module:
        settings |= {"tensorParallel": engine.tensor_parallel, "args": " ".join(engine.args)}
    return settings, engine_memory(job.shape, dtype, job.spec.head_dtype, engine)


def _work_of(role: Role) -> Callable[[_Job, RoleSpec, RoleTopology, int], _Work]:
    traits = TRAITS[role]
    if traits.leads:
        return _training
    if traits.saves:
        return _critic
    if traits.has_engines:
        return _generation
    if traits.stream is Stream.REFERENCE:
        return _reference
    return _advantages if traits.stream is None else _log_probs


@dataclass(frozen=True, slots=True)
class _Batches:
    """How the rows that a model gets at a time are cut, if all are as long as can be."""

    share: int
    """Rows of a slice, or of a claim, that one model gets."""
    rows: int
    """Rows of the largest micro-batch."""
    work: Pass
    """Its tokens."""

    @property
    def number(self) -> int:
        """Number of micro-batches."""
        return -(-self.share // self.rows)


def _batches(job: _Job, role: Role) -> _Batches:
    """A budget of tokens is taken as used up: shorter rows fill it."""
    spec, training, length = job.spec, job.spec.training, job.rows.row
    topology, trains = spec.roles.topology(role), TRAITS[role].saves
    if trains:
        share = training.global_batch_size // training.iters_per_train_update // topology.models
    else:
        share = -(-spec.rollout.batch_size // len(topology.gangs)) * spec.rollout.samples_per_prompt
    rows = share if training.micro_batch_size is None else min(share, training.micro_batch_size)
    tokens = rows * length
    if training.max_tokens_per_micro_batch is not None:
        tokens = min(tokens, max(length, training.max_tokens_per_micro_batch))
        rows = tokens // length
    traits, given = BACKENDS[spec.backend_of(role)], training.activation_checkpointing
    checkpointing = traits.checkpoints_by_default if given is None else given and traits.checkpoints_activations
    return _Batches(share, rows, Pass(tokens, -(-tokens * job.rows.response // length), trains and checkpointing))


def _bubbles(job: _Job) -> Iterator[PipelineBubbles]:
    for role in job.spec.roles.present():
        own = job.spec.parallelism_of(role)
        if own.pipeline > 1:
            number = _batches(job, role).number
            yield PipelineBubbles(role.value, own, number, bubble_share(number, own))


def _devices(job: _Job, machine: MachineDevices, processes: Sequence[PlannedProcess]) -> Iterator[PlannedDevice]:
    """Devices that are used, and the host's memory where something computes on the CPU."""
    for name, size in [*((device.name, device.memory_bytes) for device in machine.devices), ("CPU", None)]:
        users = [
            one for one in processes if one.memory and (name in one.devices or (name == "CPU" and not one.devices))
        ]
        if not users:
            continue
        needed = sum(user.memory.peak for user in users if user.memory is not None)
        has_engine = any(".engine" in user.name for user in users)
        kv_tokens = None
        if has_engine and size is not None:
            share = job.spec.roles.rollout.engine.tensor_parallel
            kv_tokens = max(0, size - needed) // kv_bytes_per_token(job.shape, job.spec.model.dtype, share)
        yield PlannedDevice(name, size, tuple(user.name for user in users), needed, kv_tokens)
