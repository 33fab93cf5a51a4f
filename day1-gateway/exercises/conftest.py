"""Import the exercises beside this file, or their solutions when COURSE_SOLUTIONS=1."""

import os
import sys
from pathlib import Path

here = Path(__file__).parent
sys.path.insert(0, str(here / "solutions" if os.environ.get("COURSE_SOLUTIONS") else here))
