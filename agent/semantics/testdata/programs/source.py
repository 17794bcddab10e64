import inspect, linecache, sys, dis, tokenize


def f(x):  # a comment
    """Its text."""
    return x


class C:
    # before
    async def g(self):
        return (lambda: 1)


print(inspect.getsource(f), inspect.getsource(C), inspect.getsourcelines(C.g), inspect.getfile(f), inspect.getsourcefile(C), inspect.getmodule(f), inspect.getcomments(C), inspect.getdoc(f), inspect.signature(f))
print(len(inspect.stack()), inspect.stack()[0].code_context, inspect.getframeinfo(sys._getframe()).positions)
print(linecache.getlines(__file__)[:3], inspect.getsource(sys.modules[__name__])[:10])
print([i.positions for i in dis.get_instructions(f)])
with tokenize.open(__file__) as file:
    print(file.encoding, len(file.readlines()))
dis.dis(f)
