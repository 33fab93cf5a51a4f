"""练习从这个目录导入；设了 COURSE_SOLUTIONS=1 就先导入答案。"""

import importlib
import os
import sys
from pathlib import Path

if os.environ.get("COURSE_SOLUTIONS"):
    solutions = Path(__file__).parent / "solutions"
    sys.path.insert(0, str(solutions))
    # pytest 会把练习的目录再放到最前面，所以现在就导入，之后用的就是这一份。
    for path in sorted(solutions.glob("ex_*.py")):
        importlib.import_module(path.stem)
