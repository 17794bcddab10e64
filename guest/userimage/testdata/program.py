"""What a program finds of the wheels in its image, as JSON."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys

import native
import pure

distribution = importlib.metadata.distribution("pure")
lost = [str(f) for f in distribution.files if not f.locate().is_file()]
code = importlib.util.cache_from_source(pure.__file__)
with open("/usr/share/pybox/image.json") as f:
    provenance = json.load(f)
try:
    open(os.path.join(os.path.dirname(pure.__file__), "x"), "w")
    writable = True
except OSError:
    writable = False

json.dump(
    {
        "twice": native.twice(21),
        "text": pure.text(),
        "file": pure.__file__,
        "compiled": os.path.exists(code),
        "cached": pure.__cached__ == code,
        "left": os.path.exists(importlib.util.cache_from_source(os.path.join(os.path.dirname(pure.__file__), "template.py"))),
        "versions": [importlib.metadata.version(n) for n in ("pure", "native")],
        "entry_points": [e.value for e in importlib.metadata.entry_points(group="console_scripts", name="pure-say")],
        "lost": lost,
        "script": subprocess.run(["pure-say", "box"], capture_output=True, text=True, check=True).stdout,
        "data": open("/usr/local/share/pure/data.txt").read(),
        "image": [provenance["name"], [p["wheel"] for p in provenance["packages"]]],
        "writable": writable,
    },
    sys.stdout,
)
