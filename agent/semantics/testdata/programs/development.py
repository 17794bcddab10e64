import asyncio, sys, warnings

print(sys.flags, warnings.filters, __import__("faulthandler").is_enabled(), sys.warnoptions)
open("/dev/null")
print(warnings.warn("pending", PendingDeprecationWarning), asyncio.new_event_loop().get_debug())
print(b"x" == "x")
open("/dev/null", "w").write("not closed")
import subprocess

subprocess.run([sys.executable, "-c", "print()"], text=True, stdout=-1)
