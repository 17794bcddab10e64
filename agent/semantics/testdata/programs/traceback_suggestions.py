import traceback

value = 1
for text in "valeu", "import sys; sys.exti()", "import maths", "from json import laods", "[].apend(1)", "(1).__nme__", "print(zz := zzz)", "import random; random.absent":
    try:
        exec(text)
    except Exception:
        traceback.print_exc()
import random

random.randint(1, 2)
