"""Records today's behaviour anew: python -m tests.recorded"""

from tests.recorded.decisions import recording as decisions

if __name__ == "__main__":
    decisions.record()
