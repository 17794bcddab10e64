import sys

for name in (
    "argv orig_argv executable _base_executable prefix base_prefix exec_prefix base_exec_prefix path flags warnoptions "
    "_xoptions dont_write_bytecode pycache_prefix platlibdir version version_info implementation platform byteorder "
    "float_info int_info hash_info thread_info maxsize maxunicode api_version hexversion float_repr_style "
    "abiflags copyright builtin_module_names stdlib_module_names meta_path _git _framework"
).split():
    value = getattr(sys, name, "none")
    print(name, sorted(value) if isinstance(value, frozenset) else value)
print(sys.path_hooks[0], [h.__qualname__ for h in sys.path_hooks[1:]])
for name in (
    "getdefaultencoding getfilesystemencoding getfilesystemencodeerrors getrecursionlimit getswitchinterval "
    "get_int_max_str_digits getdlopenflags gettrace getprofile get_asyncgen_hooks is_finalizing "
    "get_coroutine_origin_tracking_depth is_stack_trampoline_active _is_gil_enabled"
).split():
    print(name, getattr(sys, name)())
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.breakpointhook is sys.__breakpointhook__, sys.unraisablehook is sys.__unraisablehook__)
print(hasattr(sys, "ps1"), hasattr(sys, "last_exc"), hasattr(sys, "tracebacklimit"))
print(sorted(vars(sys)))
