"""The promises that the tests keep, each with the patch that breaks it and the cheapest tests that notice.

Sentences are those of `docs/architecture.md`, `docs/protocols/` and `docs/queue.md`. A refactoring moves `where`, `old`
and `new` along with the code that keeps the promise, and leaves sentence and tests.
"""

from tests.promises.of_the_queue import QUEUE
from tests.promises.of_the_supervisor import SUPERVISOR
from tests.promises.of_the_workers import WORKERS

PROMISES = (*QUEUE, *WORKERS, *SUPERVISOR)
