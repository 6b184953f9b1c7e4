"""Records today's behaviour anew, all of it or what is named: python -m tests.recorded decisions wire jobs"""

import sys

from tests.recorded import wire
from tests.recorded.decisions import recording as decisions
from tests.recorded.jobs import recording as jobs
from tests.recorded.renames import Recording

RECORD = {Recording.DECISIONS: decisions.record, Recording.WIRE: wire.record, Recording.JOBS: jobs.record}

if __name__ == "__main__":
    for name in sys.argv[1:] or list(RECORD):
        RECORD[Recording(name)]()
