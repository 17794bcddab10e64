import sys, importlib.util, importlib.machinery

print(importlib.util.find_spec("absent"), importlib.util.find_spec("json").origin, importlib.machinery.PathFinder.find_spec("finders").origin)
with open("made_later.py", "w") as f:
    f.write("x = 1")
import made_later

print(made_later.x, made_later.__spec__.origin, made_later.__spec__.loader_state)
spec = importlib.util.spec_from_file_location("given", "made_later.py")
m = importlib.util.module_from_spec(spec)
spec.loader.exec_module(m)
print(m, m.__file__)
try:
    importlib.util.find_spec("__main__")
except ValueError as error:
    print(error)
import site, sysconfig

print(site.getsitepackages(), site.PREFIXES, site.ENABLE_USER_SITE, sysconfig.get_config_var("EXT_SUFFIX"))
