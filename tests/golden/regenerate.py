"""Write golden curves: those that are missing, or those of the cases named.

``python tests/golden/regenerate.py [case ...]``. Name a case if its numbers are meant to change; the commit says why.
"""

from __future__ import annotations

import sys

from curves import CASES, curve, path_of, write

if __name__ == "__main__":
    for case in sys.argv[1:] or [case for case in CASES if not path_of(case).exists()]:
        write(case, curve(case))
        print(f"wrote {case}")
