import os, sys

print(sys.flags, sys.stdin.encoding, sys.stdin.errors, sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding, sys.stderr.errors, sys.stdout.write_through, sys.stderr.write_through)
print(sys.path, sys.getfilesystemencoding(), ascii(sys.argv), sys.get_int_max_str_digits(), os.process_cpu_count(), sys._xoptions)
print(ascii("ä€"), "ä" if sys.stdout.errors != "strict" or sys.stdout.encoding == "utf-8" else "")
print("after")
