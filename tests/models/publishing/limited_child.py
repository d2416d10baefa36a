"""A child process that ends as if it had reached the limit in the variable ENDS. Used by test_limited.py."""

import json
import os
import signal
import sys

if __name__ == "__main__":
    sys.stdin.readline()
    if os.environ["ENDS"] == "RLIMIT_CPU":
        os.kill(os.getpid(), signal.SIGXCPU)
    print(json.dumps({"kind": "MemoryError"}))
