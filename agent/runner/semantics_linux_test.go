package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A native is a program whose run in a box must leave the same bytes and the same
// end as `python3 main.py first second` outside of one.
type native struct {
	name    string
	program string
	env     []string
	files   map[string]string
	stdin   string
}

// state prints what a program can see of its interpreter.
const state = `
import sys
modules = sorted(sys.modules)
finders = sorted(sys.path_importer_cache)
names = dir()
frame = sys._getframe()
import builtins, gc, os, signal
print("main", names, __name__, __file__, __package__, __doc__, __spec__, type(__loader__), frame.f_back)
print("modules", modules)
print("finders", finders, [str(type(f)) for _, f in sorted(sys.path_importer_cache.items())])
print("hooks", sys.meta_path, len(sys.path_hooks), sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
print("path", sys.path, sys.argv, sys.orig_argv if hasattr(sys, "orig_argv") else None, sys.executable, sys.prefix)
print("flags", sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.getrecursionlimit(), sys.getswitchinterval())
print("site", getattr(sys.modules.get("sitecustomize"), "__file__", None), getattr(sys.modules.get("sitecustomize"), "__spec__", None))
print("env", list(os.environ.items()), list(os.environb.items()))
print("builtins", sorted(vars(builtins)))
print("gc", gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, sys.gettrace(), sys.getprofile())
print("signals", [(s, signal.getsignal(s)) for s in signal.valid_signals() if signal.getsignal(s) is not signal.default_int_handler], signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []))
print("dispositions", [l for l in open("/proc/self/status") if l.startswith(("SigB", "SigI", "SigC", "SigP", "Threads"))])
print("files", sorted(os.listdir("/proc/self/fd"))[:-1], os.getcwd(), oct(os.umask(0)), os.listdir("."))
for s, t in (sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__):
    print("stream", s, s is t, type(s), s.mode, s.encoding, s.errors, s.newlines, s.write_through, s._CHUNK_SIZE,
        s.isatty(), s.seekable(), s.readable(), s.writable(), s.fileno(), s.name, sorted(vars(s)))
    raw = getattr(s.buffer, "raw", s.buffer)
    print("raw", type(s.buffer), type(raw), raw.name, raw.mode, raw.closefd, raw.seekable(), sorted(vars(raw)))
print("line", sys.stderr.line_buffering, sys.stdin.line_buffering)
import threading, atexit, time, locale, random, warnings
print("threads", threading.enumerate(), atexit._ncallbacks(), locale.setlocale(locale.LC_ALL, None), sys.getfilesystemencoding(), hash("a"))
print("warnings", warnings.filters)
import subprocess
sys.stdout.flush()
subprocess.run(["env"])
print("child", subprocess.run([sys.executable, "-c", "import sys; print(sys.path, sorted(sys.modules))"], stdout=subprocess.PIPE).stdout)
`

var natives = []native{
	{name: "state", program: state},
	{name: "state with a PYTHONPATH", program: state, env: []string{"PYTHONPATH=/usr/share:/nowhere"}},
	{name: "state unbuffered", program: state, env: []string{"PYTHONUNBUFFERED=1"}},
	{name: "state with encoding", program: state, env: []string{"PYTHONIOENCODING=latin-1:replace"}},
	{name: "state in development mode", program: state, env: []string{"PYTHONDEVMODE=1"}},
	{name: "state without user site", program: state, env: []string{"PYTHONNOUSERSITE=1"}},
	{name: "state with a safe path", program: state, env: []string{"PYTHONSAFEPATH=1"}},
	{name: "state with warnings as errors", program: state, env: []string{"PYTHONWARNINGS=error"}},
	{name: "state in the C locale", program: state, env: []string{"LC_ALL=C", "PYTHONCOERCECLOCALE=0", "PYTHONUTF8=0"}},
	{
		name:    "modules from the working folder",
		program: "import sys, mine; print(mine.x, mine.__file__, sys.path, sorted(sys.path_importer_cache), sorted(sys.modules))",
		env:     []string{"PYTHONPATH=lib"},
		files:   map[string]string{"lib/mine.py": "x = 5"},
	},
	{
		name:    "byte code elsewhere",
		program: "import mine, os; print(sorted((d, sorted(n), sorted(f)) for d, n, f in os.walk('cache')))",
		env:     []string{"PYTHONDONTWRITEBYTECODE=", "PYTHONPYCACHEPREFIX=cache"},
		files:   map[string]string{"mine.py": "x = 5"},
	},
	{
		name:    "sitecustomize of the image",
		program: "import sys, sitecustomize as s; print(s.__file__, s.__spec__, s.x, s.seen, sys.modules['sitecustomize'] is s, dir(s))",
		env:     []string{"PYTHONPATH=lib"},
		files:   map[string]string{"lib/sitecustomize.py": "import sys; x = 5; seen = sys.path"},
	},
	{
		name:    "sitecustomize of the image that fails",
		program: "import sys; print('sitecustomize' in sys.modules, sys.path)",
		env:     []string{"PYTHONPATH=lib"},
		files:   map[string]string{"lib/sitecustomize.py": "1 / 0"},
	},
	{
		name:    "sitecustomize of the image without a module of its own",
		program: "import sys; print('sitecustomize' in sys.modules)",
		env:     []string{"PYTHONPATH=lib"},
		files:   map[string]string{"lib/sitecustomize.py": "import absent"},
	},
	{name: "exception", program: "def f(x):\n    return 1 / x\n\n\nf(0)\n"},
	{name: "chained exceptions", program: "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('ü\\n') from e\n"},
	{name: "exception in an imported module", program: "import lib.m\n", files: map[string]string{"lib/m.py": "def f():\n    raise OSError(5, 'x')\n\nf()\n"}},
	{name: "exception group", program: "class E(Exception):\n    pass\n\nraise E('a', 2)\n"},
	{name: "syntax error", program: "x = 1\nprint(x\ny = = 2\n"},
	{name: "indentation error", program: "if 1:\nprint()\n"},
	{name: "stack", program: "import traceback\ndef f():\n    traceback.print_stack()\nf()\n"},
	{name: "source", program: "import inspect\ndef f():\n    return 5  # five\nprint(inspect.getsource(f), inspect.getfile(f), inspect.getmodule(f), len(inspect.stack()))\n"},
	{name: "warning", program: "import warnings\nwarnings.warn('beware')\nwarnings.warn('old', DeprecationWarning)\n'\\d'\nassert (1, 'x')\n"},
	{name: "atexit", program: "import atexit, sys\natexit.register(print, 'last')\natexit.register(print, 'first', file=sys.stderr)\nprint('main')\nraise SystemExit(3)\n"},
	{name: "recursion", program: "def f(n):\n    try:\n        return f(n + 1)\n    except RecursionError as e:\n        return n, str(e)\nprint(f(0))\n"},
	{name: "unbounded recursion", program: "def f():\n    f()\nf()\n"},
	{name: "pickling", program: "import pickle\nclass C:\n    def __init__(self): self.x = 5\nb = pickle.dumps([C(), C])\nprint(b, pickle.loads(b)[0].x)\n"},
	{name: "standard input", stdin: "a\r\nb\n\xff\x00c", program: "import sys\nprint(ascii(input()), ascii(sys.stdin.readline()), ascii(sys.stdin.read()), ascii(sys.stdin.read()))\ninput()\n"},
	{name: "binary input", stdin: "a\r\nb\xff", program: "import sys, os\nprint(sys.stdin.buffer.read(), os.read(0, 5))\n"},
	{name: "source in Latin-1", program: "# -*- coding: latin-1 -*-\nprint('\xe4\xf6', ascii('\xe4'))\nraise ValueError('\xfc')\n"},
	{name: "source with a byte order mark", program: "\ufeffprint('ä', __file__)\n1/0\n"},
	{name: "source with CRLF", program: "x = '''a\r\nb'''\r\nprint(ascii(x))\r\n1/0\r\n"},
	{name: "source with a NUL", program: "print(1)\nx = '\x00'\n"},
	{name: "source that is not UTF-8", program: "print('\xff')\n"},
	{name: "source with a bad cookie", program: "# coding: nonsense\nprint(1)\n"},
	{name: "empty source", program: ""},
	{name: "source without a last line end", program: "print('x')\nif 1: 1/0"},
	{name: "Unicode output", program: "import sys\nprint('ä€😀', '\\udcff'.encode('utf-8', 'surrogateescape'))\nprint('\\udcff')\nprint('\\ud800', file=sys.stderr)\nprint('\\ud800')\n"},
	{name: "binary output", program: "import sys\nsys.stdout.buffer.write(bytes(range(256)))\nprint('x')\nsys.stderr.buffer.write(b'\\xff')\n"},
	{name: "sys.exit with a text", program: "import sys\nsys.exit('going')\n"},
	{name: "sys.exit with None", program: "import sys\nsys.exit()\n"},
	{name: "sys.exit with True", program: "import sys\nsys.exit(True)\n"},
	{name: "sys.exit with a big number", program: "import sys\nsys.exit(2**40 + 3)\n"},
	{name: "sys.exit with -1", program: "raise SystemExit(-1)\n"},
	{name: "os._exit", program: "import os\nprint('a', end='')\nos._exit(137)\n"},
	{name: "closed standard output", program: "import os, sys\nsys.stdout.reconfigure(line_buffering=True)\nos.close(1)\nprint('x')\n"},
	{name: "closed streams", program: "import sys\nsys.stdout.close()\nsys.stderr.close()\nsys.stdin.close()\n1/0\n"},
	{name: "broken pipe", program: "import os, sys\nsys.stdout.reconfigure(line_buffering=True)\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\nprint('x')\n"},
	{name: "standard streams opened again", program: "import os\nfor n in 'stdout', 'stderr':\n    with open('/dev/' + n, 'w') as f:\n        f.write(n)\nwith open('/proc/self/fd/1', 'wb', 0) as f:\n    f.write(b'x')\n"},
	{name: "input opened again", stdin: "abc", program: "print(open('/dev/stdin').read())\n"},
	{name: "sockets", program: "import socket, select\na, b = socket.socketpair()\nwith a, b:\n    a.sendall(b'x')\n    print(b.recv(1), socket.timeout, socket.error, isinstance(a, socket.SocketType))\nprint(socket.CAPI if hasattr(socket, 'CAPI') else None and 1)\n"},
	{name: "threads", program: "import threading, concurrent.futures as c\nwith c.ThreadPoolExecutor(4) as p:\n    print(list(p.map(lambda x: x * x, range(9))))\nprint(threading.main_thread().name, threading.active_count(), threading.current_thread() is threading.main_thread())\n"},
	{name: "asyncio", program: "import asyncio\nasync def f():\n    p = await asyncio.create_subprocess_exec('echo', 'x', stdout=-1)\n    print(await p.communicate(), p.returncode)\nasyncio.run(f())\n"},
	{name: "forked multiprocessing", program: processes("fork")},
	{name: "spawned multiprocessing", program: processes("spawn")},
	{name: "multiprocessing by a server", program: processes("forkserver")},
	{name: "exec", program: "import os, sys\nprint('before', flush=True)\nos.execv(sys.executable, [sys.executable, '-c', 'import sys, os; print(sys.path, sorted(os.listdir(\"/proc/self/fd\"))[:-1], os.getcwd()); sys.exit(9)'])\n"},
	{name: "subprocess", program: "import subprocess, sys\nprint(subprocess.run([sys.executable, '-m', 'this'], capture_output=True).stdout[:20], subprocess.run('exit 3', shell=True).returncode, subprocess.run(['sleep', '9'], preexec_fn=lambda: __import__('os').kill(__import__('os').getpid(), 9)).returncode)\n"},
	{name: "runpy", program: "import runpy\nprint(runpy.run_path('other.py')['x'])\n", files: map[string]string{"other.py": "import sys\nx = 5\nprint(__name__, sys.argv)"}},
	{name: "KeyboardInterrupt", program: "raise KeyboardInterrupt\n"},
	{name: "interrupt", program: "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(60)\n"},
	{name: "segmentation fault", program: "import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)\n"},
	{name: "abort", program: "import os\nprint('x', flush=True)\nos.abort()\n"},
	{name: "signals", program: "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *a: print('handled', a[0], flush=True))\nos.kill(os.getpid(), signal.SIGUSR1)\nsignal.alarm(0)\nos.kill(os.getpid(), signal.SIGTERM)\nimport time\ntime.sleep(60)\n"},
	{name: "exception hook", program: "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\n1/0\n"},
	{name: "code that imports itself", program: "import main\nprint(__name__, main.__name__)\n"},
	{name: "package folder", program: "import os.path, pkgutil, importlib.resources as r\nprint(pkgutil.get_data('p', 'd'), sorted(m.name for m in pkgutil.iter_modules(['.'])))\n", files: map[string]string{"p/__init__.py": "", "p/d": "data"}},
}

func processes(method string) string {
	return `
import multiprocessing, os, sys

def f(x):
    print("in", x, sys.argv, __name__, sorted(k for k in os.environ), "sitecustomize" in sys.modules, flush=True)
    return x * x, os.getpid() > 0

if __name__ == "__main__":
    c = multiprocessing.get_context("` + method + `")
    with c.Pool(1) as p:
        print(p.map(f, range(3)))
    q = c.Queue()
    p = c.Process(target=q.put, args=("x" * 100000,))
    p.start()
    print(len(q.get()))
    p.join()
    print(p.exitcode)
    with c.Lock():
        pass
`
}

func TestNativeSemantics(t *testing.T) {
	for _, n := range natives {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %t", n.name, late), func(t *testing.T) {
				t.Parallel()
				n.compare(t, late)
			})
		}
	}
}

// compare runs the program in a box, which was made before its name was known if late,
// and outside of one.
func (n native) compare(t *testing.T, late bool) {
	t.Helper()
	b := boxSpec{env: n.environment(), args: []string{"main.py", "first", "second"}, late: late}.mustStart(t)
	for name, text := range n.files {
		b.write(name, text)
	}
	b.start("main.py", n.program)
	_, _ = b.in.WriteString(n.stdin)
	got := b.finish()
	b.end()
	want := n.plain(t, b.work)
	compare(t, "stdout", got.out, want.out)
	compare(t, "stderr", got.err, want.err)
	if got.status != want.status {
		t.Errorf("raw status %#x, plain %#x", got.status, want.status)
	}
}

// addresses are of memory, in repr and in the names of threads: random.
var addresses = regexp.MustCompile(`0x[0-9a-f]{6,}|started [0-9]+`)

func compare(t *testing.T, what, got, want string) {
	t.Helper()
	g := strings.Split(addresses.ReplaceAllString(got, "(address)"), "\n")
	w := strings.Split(addresses.ReplaceAllString(want, "(address)"), "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Errorf("%s differs from line %d on\nbox:\n%s\nplain:\n%s", what, i+1,
				strings.Join(g[min(i, len(g)):], "\n"), strings.Join(w[min(i, len(w)):], "\n"))
			return
		}
	}
}

func (n native) environment() []string { return append(append([]string{}, baseEnv...), n.env...) }

// plain runs the program without the runner in the folder that the box had.
func (n native) plain(t *testing.T, work string) result {
	t.Helper()
	old, err := filepath.Glob(work + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range old {
		if err := os.RemoveAll(f); err != nil {
			t.Fatal(err)
		}
	}
	n.put(t, work, "main.py", n.program)
	for name, text := range n.files {
		n.put(t, work, name, text)
	}
	var out, errs strings.Builder
	cmd := exec.Command(interpreter(t), "main.py", "first", "second")
	cmd.Dir, cmd.Env = work, n.environment()
	in, inEnd := pipe(t)
	cmd.Stdin = in
	cmd.Stdout, cmd.Stderr = &out, &errs
	_, _ = inEnd.WriteString(n.stdin)
	_ = inEnd.Close()
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{waitStatus(cmd.ProcessState), out.String(), errs.String()}
}

func (native) put(t *testing.T, work, name, text string) {
	t.Helper()
	path := filepath.Join(work, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestSeed: what an image has for /tmp is copied: files and folders, of a bounded size
// and number, and no links.
func TestSeed(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	small := filepath.Join(from, "matplotlib", "list.json")
	for name, n := range map[string]int{
		small: 5, filepath.Join(from, "matplotlib", "deep", "b"): 1, filepath.Join(from, "empty"): 0,
		filepath.Join(from, "huge"): 1<<20 + 1, filepath.Join(from, "large1"): 600_000, filepath.Join(from, "large2"): 600_000,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, make([]byte, n), 0o444)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(small, filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	const program = `
import ast, posix, sys
tree = ast.parse(sys.stdin.read())
tree.body = [n for n in tree.body if getattr(n, "name", "") == "seed" or isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") in ("MAX_SEED", "PAGE")]
exec(compile(tree, "runner.py", "exec"))
seed(sys.argv[1], sys.argv[2])
`
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter(t), "-c", program, from, to)
	cmd.Stdin = bytes.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var got []string
	err := filepath.WalkDir(to, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			st, err := d.Info()
			if err != nil {
				return err
			}
			got = append(got, fmt.Sprintf("%s %v %d", strings.TrimPrefix(p, to), st.Mode()&0o200 != 0, st.Size()))
		}
		return nil
	})
	// One of the large files fits, whichever comes first.
	large := 0
	got = slices.DeleteFunc(got, func(f string) bool {
		found := strings.HasPrefix(f, "/large")
		if found {
			large++
		}
		return found
	})
	if want := "[/empty true 0 /matplotlib/list.json true 5]"; err != nil || fmt.Sprint(got) != want || large != 1 {
		t.Errorf("%v and %d large ones, %v; want %s and 1", got, large, err, want)
	}
}
