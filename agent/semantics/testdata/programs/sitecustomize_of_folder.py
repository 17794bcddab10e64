import sys

print("program", sitecustomize_seen if "sitecustomize_seen" in dir(__builtins__) else None, sys.modules.get("sitecustomize"), sys.modules.get("usercustomize"))
