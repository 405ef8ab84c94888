"""Write the golden curves anew: ``python tests/golden/regenerate.py [case ...]``, without a case all of them.

Do it when numbers are meant to change, and say in the commit why they do.
"""

from __future__ import annotations

import sys

from curves import CASES, curve, write

if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        write(case, curve(case))
        print(f"wrote {case}")
