import sys, threading

seen = []


def f(x):
    y = x + 1
    return y


def tracer(frame, event, arg):
    seen.append((event, frame.f_code.co_name, frame.f_lineno, arg if event == "return" else None))
    return tracer


sys.settrace(tracer)
f(1)
sys.settrace(None)
sys.setprofile(tracer)
f(2)
len("")
sys.setprofile(None)
print(*seen, sep="\n")
m = sys.monitoring
m.use_tool_id(2, "test")
m.register_callback(2, m.events.PY_START, lambda code, at: print("start", code.co_qualname, at))
m.set_events(2, m.events.PY_START)
f(3)
m.set_events(2, 0)
print([m.get_tool(i) for i in range(6)])
import trace

trace.Trace(count=False, trace=True, ignoredirs=[sys.prefix]).runfunc(f, 3)
