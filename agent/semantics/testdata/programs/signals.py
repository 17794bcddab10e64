import os, select, signal, subprocess, sys, threading, time

print([(s, signal.getsignal(s)) for s in sorted(signal.valid_signals()) if signal.getsignal(s) is not signal.default_int_handler])
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending(), signal.getitimer(signal.ITIMER_REAL))

seen = []


def handler(n, frame):
    seen.append(n)
    print("handled", signal.Signals(n).name, frame.f_code.co_name, threading.current_thread().name)


for s in signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD:
    signal.signal(s, handler)
    os.kill(os.getpid(), s)
    signal.raise_signal(s)
seen.clear()
signal.setitimer(signal.ITIMER_REAL, 0.01)
while not seen:
    time.sleep(0.01)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
print(signal.sigpending(), signal.sigwait([signal.SIGUSR2]), signal.sigtimedwait([signal.SIGUSR2], 0))
r, w = os.pipe()
os.set_blocking(w, False)
signal.set_wakeup_fd(w)
signal.raise_signal(signal.SIGUSR1)
print(os.read(r, 1))
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt as error:
    print(repr(error))
r, w = os.pipe()
os.close(r)
try:
    os.write(w, b"x")
except BrokenPipeError as error:
    print(error)
for how in {}, {"restore_signals": False}:
    out = subprocess.run([sys.executable, "-c", "import signal; print(open('/proc/self/status').read(), signal.getsignal(signal.SIGPIPE))"], stdout=-1, **how).stdout
    print([line for line in out.splitlines() if line[:4] in (b"SigB", b"SigI", b"SigC", b"Hand")])
print(signal.strsignal(9), [s.name for s in signal.Signals])
p = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
p.terminate()
print(p.wait(), os.WIFSTOPPED(0), signal.siginterrupt(signal.SIGUSR1, True))
