import sys

modules, cache = list(sys.modules), list(sys.path_importer_cache)
print(modules)
print(cache, [str(f) for f in sys.path_importer_cache.values()])
for name in modules:
    module = sys.modules[name]
    print(name, getattr(module, "__file__", None), getattr(module, "__cached__", None), getattr(getattr(module, "__spec__", None), "origin", None), type(getattr(module, "__loader__", None)), sorted(vars(module)))
