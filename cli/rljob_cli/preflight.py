"""What can be known about a job from this machine before anything starts, without torch.

Called by the commands with a job whose paths are absolute and whose defaults are resolved. Reads the files that the
manifest names. A reward is found here, and tried elsewhere (`reward_trial`); a model of a family that is not known is
tried by a process (`family_lookup`).
"""

import difflib
import json
from collections.abc import Collection, Iterator

from rljob_api.open_defaults import Platform
from rljob_api.spec import RLJob
from rljob_api.spec.data import ReasoningGymSpec
from rljob_cli.findings import Finding, Findings, problem, unchecked
from rljob_cli.model_checks import model_findings
from rljob_cli.prompt_checks import prompt_findings
from rljob_cli.reward_lookup import reward_problem


def preflight(job: RLJob, place: Platform = Platform.MACHINE, refused: Collection[str] = ()) -> Findings:
    """What is missing, unreadable, or not what was meant. For a cluster what is not here is not looked at.

    `refused`: paths of fields that the job was salvaged from.
    """
    spec, is_elsewhere = job.spec, place is Platform.CLUSTER
    findings = Findings()
    findings.add(model_findings(spec, is_elsewhere=is_elsewhere))
    reward = spec.rollout.reward.custom
    wrong = reward_problem(reward) if reward is not None else None
    if wrong is not None:
        findings.add([(unchecked if is_elsewhere else problem)(wrong, "spec.rollout.reward.custom")])
    if spec.data.reasoning_gym is not None:
        findings.add(_reasoning_gym_problems(spec.data.reasoning_gym))
    else:
        findings.add(prompt_findings(spec, is_elsewhere=is_elsewhere, refused=refused))
    return findings


def _reasoning_gym_problems(gym: ReasoningGymSpec) -> Iterator[Finding]:
    field = "spec.data.reasoningGym"
    try:
        import reasoning_gym  # here, since it takes a second to import and only such jobs need it
    except ImportError:
        yield unchecked(f"{field}.dataset: reasoning_gym is not installed here, so that its name was not looked up.")
        return
    try:
        reasoning_gym.create_dataset(gym.dataset, size=gym.size, seed=gym.seed, **gym.parameters)
    except (ValueError, TypeError, AssertionError) as error:
        if gym.dataset not in reasoning_gym.factory.DATASETS:
            near = difflib.get_close_matches(gym.dataset, reasoning_gym.factory.DATASETS, n=1)
            cure = f"Did you mean {near[0]}?" if near else "Give the name of one of its datasets."
            yield problem(f"{field}.dataset: {gym.dataset} is no dataset of reasoning_gym. {cure}")
            return
        shown = json.dumps(gym.parameters, default=str)
        text = f"{field}.parameters: {shown} do not fit the dataset {gym.dataset}: {error}. Correct them."
        yield problem(text, field)
