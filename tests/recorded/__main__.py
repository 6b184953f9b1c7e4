"""Records today's behaviour anew: python -m tests.recorded decisions wire"""

import sys

from tests.recorded import wire
from tests.recorded.decisions import recording as decisions
from tests.recorded.renames import Recording

RECORD = {Recording.DECISIONS: decisions.record, Recording.WIRE: wire.record}

if __name__ == "__main__":
    for name in sys.argv[1:] or list(RECORD):
        RECORD[Recording(name)]()
