import sys, warnings

print(warnings.filters, sys.warnoptions)
warnings.warn("plain")
warnings.warn("plain")
warnings.warn("old", DeprecationWarning)
warnings.warn("pending", PendingDeprecationWarning)
warnings.warn("resource", ResourceWarning)
warnings.warn("imported", ImportWarning)


def f():
    warnings.warn("of the caller", stacklevel=2)


f()
import module_that_warns

assert (1, "always true")
x = "\d"
1 is 1
open("/dev/null")
with warnings.catch_warnings(record=True) as all:
    warnings.simplefilter("always")
    warnings.warn("kept")
print([str(w.message) for w in all], [w.lineno for w in all])
warnings.warn_explicit("explicit", UserWarning, "nowhere.py", 7)
import re

re.sub("a", "b", "c", 1)
