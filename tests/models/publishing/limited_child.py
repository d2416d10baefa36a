"""A child process that acts as if it had reached the limit that ENDS names. test_limited.py starts it."""

import json
import os
import signal
import sys

if __name__ == "__main__":
    sys.stdin.readline()
    if os.environ["ENDS"] == "RLIMIT_CPU":
        os.kill(os.getpid(), signal.SIGXCPU)
    print(json.dumps({"kind": "MemoryError"}))
