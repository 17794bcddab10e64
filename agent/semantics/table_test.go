//go:build linux && pyboxtest

package semantics_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// packageFiles are modules for programs that import.
var packageFiles = map[string]string{
	"package/__init__.py":   "",
	"package/__main__.py":   "import sys\nprint('package as', __name__, sys.argv, __package__)\n",
	"package/data.txt":      "data\n",
	"package/inner.py":      "def call(f):\n    return f()\n\n\ndef fail(x):\n    return 1 / x\n",
	"package/circular_a.py": "from . import circular_b\nx = 1\n",
	"package/circular_b.py": "from . import circular_a\nprint('circular', hasattr(circular_a, 'x'))\n",
	"package/broken.py":     "x = 1\ndef f(:\n",
	"space/name/mod.py":     "",
	"other.py":              "import sys\nvalue = 5\nprint('other as', __name__, sys.argv)\n",
}

// aModule is one module beside the program.
var aModule = map[string]string{"module.py": "x = 1\n"}

// mixedInput has several line ends and bytes that are not UTF-8.
const mixedInput = "first\r\nsecond\xff\nthird ä\rfourth\nlast"

// objectCases look at the interpreter that a program finds.
var objectCases = map[string]semantic{
	"main_module":         {out: "__main__ /box/main_module.py The text of the module."},
	"main_imported_again": {out: "imported main_imported_again"},
	"interpreter": {args: []string{"a", "--b"}, out: "argv ['interpreter.py', 'a', '--b']", known: []difference{
		{"stdout", "orig_argv ['python3',", "orig_argv ['/usr/bin/python3',"},
	}},
	"modules_at_start": {out: "'site'"},
	"types_at_start":   {out: "builtins.type\n"},
	"nothing_left": {out: "MainThread True True 0\n", known: []difference{
		{"stdout", "sockets at first False\n", "sockets at first True\n"},
		{"stdout", "collected False\n", "collected True\n"},
	}},
	"finders":   {out: "made_later"},
	"tracing":   {out: "start f 0"},
	"collected": {out: "deleted in builtins"},
	"subinterpreter": {out: "__main__ ['subinterpreter.py'] False 0\n", known: []difference{
		{"stdout", "['/box', '/usr/lib/python313.zip',", "['/box', '/box/.pybox', '/usr/lib/python313.zip',"},
	}},

	"whoami in random.py":     {name: "random.py", status: 1, err: "ValueError: random.py"},
	"whoami in _socket.py":    {name: "_socket.py", status: 1, err: "ValueError: _socket.py"},
	"whoami in __main__.py":   {name: "__main__.py", status: 1, err: "ValueError: __main__.py"},
	"whoami of other letters": {name: "größe 😀.py", status: 1, err: "größe 😀.py"},
}

// nameRoom is what the kernel has for the name and the arguments of a program in a box
// that was made ahead, each with a NUL behind it: as much as the longest name takes.
const nameRoom = 256

// processCases look at what surrounds the interpreter.
var processCases = map[string]semantic{
	"arguments": {args: []string{"", "a b", "-c", "--", "ä€", "\t\n\\", "'\"$"}, out: "'a b'", ahead: []difference{
		{"stdout", `b'\'"$', b'']`, `b'\'"$'` + strings.Repeat(", b''", nameRoom-len("arguments.py\x00\x00a b\x00-c\x00--\x00ä€\x00\t\n\\\x00'\"$\x00")) + `, b'']`},
	}},
	"process": {out: "/box 0o22", known: []difference{
		{"stdout", "parent another\n", "parent init\n"},
	}},
	"environment": {env: []string{"ACCENT=ä=é", "EMPTY=", "LANG=C.UTF-8", "PYTHONPATH=/box/lib:/nowhere"}, out: "('HOME', '/tmp')"},
	"environment_of_proc": {out: "LANG=C.UTF-8\n", known: []difference{
		{"stdout", "MPLCONFIGDIR=/tmp/matplotlib\n", "MPLCONFIGDIR=/tmp/matplotlib\nPYTHONPATH=/box/.pybox\n"},
	}},
	"descriptors": {out: "0 prw-------"},
	"files":       {out: "(6, 'a,b,c')", status: 1, err: "FileExistsError"},
	"locales":     {out: "C.UTF-8"},
	"libraries":   {out: "OpenSSL"},

	"settings without UTF-8": {env: []string{"LC_ALL=C", "PYTHONCOERCECLOCALE=0", "PYTHONUTF8=0"}, out: "ascii", status: 1, err: "UnicodeEncodeError"},
	"settings of many kinds": {env: []string{"PYTHONIOENCODING=latin-1:replace", "PYTHONSAFEPATH=1", "PYTHONINTMAXSTRDIGITS=1000", "PYTHON_CPU_COUNT=3", "PYTHONNOUSERSITE=1"}, out: "iso8859-1 replace"},
	"settings of paths":      {env: []string{"PYTHONPATH=lib:/tmp:"}, out: "'/box/lib', '/tmp', '/box'"},
	"settings that are wrong": {env: []string{"PYTHONWARNINGS=nonsense"}, out: "after\n", err: "Invalid -W option", known: []difference{
		{"stderr", "Invalid -W option ignored: invalid action: 'nonsense'\n", ""},
	}},
	"optimized":   {env: []string{"PYTHONOPTIMIZE=2", "PYTHONHASHSEED=0"}, out: "False None None 2 4644417185603328019\n"},
	"development": {env: []string{"PYTHONDEVMODE=1", "PYTHONWARNDEFAULTENCODING=1"}, out: "dev_mode=True", err: "EncodingWarning"},
}

// streamCases are of the three standard streams.
var streamCases = map[string]semantic{
	"streams": {stdin: "x", out: "text encoding 'utf-8'", known: []difference{
		{"stdout", "buffering <stdout> False\n", "buffering <stdout> True\n"},
	}},
	"streams unbuffered": {env: []string{"PYTHONUNBUFFERED=1"}, out: "text write_through True"},
	"streams_replaced":   {out: "stdout again\n", status: 120, err: "on standard error\n"},
	"text_io":            {out: `b'\xc3\xa4\nb\r\n'`, err: "to error"},
	"surrogates":         {out: "before\n", err: "surrogates not allowed", status: 1},
	"much_output":        {out: "line 2999", err: "error 2999"},

	"unflushed":      {status: 3, known: []difference{{"stdout", "", "a whole line\n"}}},
	"unflushed_exec": {out: "executed\n", known: []difference{{"stdout", "executed\n", "a whole line\nexecuted\n"}}},
	"unflushed_fork": {out: "parent\n", known: []difference{
		{"stdout", "child\na whole line\nhalf a line parent\n", "child\nhalf a line parent\n"},
	}},
	"broken_pipe": {out: "a line\n", status: 120, err: "BrokenPipeError", known: []difference{
		{"stderr", "Exception ignored on", "Traceback (most recent call last):\n" +
			"  File \"/box/broken_pipe.py\", line 7, in <module>\n    print(\"into nothing\")\n    ~~~~~^^^^^^^^^^^^^^^^\n" +
			"BrokenPipeError: [Errno 32] Broken pipe\nException ignored on"},
	}},
	"broken_pipe_signal": {out: "a line\n", status: -int(syscall.SIGPIPE)},
	"closed_streams":     {out: "a line\n"},

	"standard_input":        {stdin: mixedInput, out: `'second\udcff\n'`, status: 1, err: "EOFError: EOF when reading a line"},
	"standard_input_binary": {stdin: mixedInput, out: "b'first'"},
	"standard_input_poll":   {stdin: "abc" + strings.Repeat("x", 300_000) + "end", out: "300003 b'end'"},
	"standard_input_shared": {stdin: mixedInput, out: "3 <stdin> 'last'\n"},
	"standard_input_unread": {stdin: strings.Repeat(strings.Repeat("x", 99)+"\n", 5000), out: "100\n"},
	"prompts":               {stdin: "hidden\nx + 1\ndef f(:\n\x00\n", out: "'hidden'", status: 1, err: "GetPassWarning"},
}

// errorCases are of tracebacks, warnings and what goes too deep.
var errorCases = map[string]semantic{
	"traceback_functions":   {out: "before\n", status: 1, err: "return 1 / y\n           ~~^~~\n"},
	"traceback_chained":     {out: "finally\n", status: 1, err: "a note\nof two lines"},
	"traceback_group":       {env: []string{"FORCE_COLOR=1"}, status: 1, err: "and 7 more exceptions"},
	"traceback_carets":      {status: 1, err: "~~~^^"},
	"traceback_modules":     {files: packageFiles, status: 1, err: `File "/box/package/inner.py", line 6, in fail`},
	"traceback_suggestions": {files: map[string]string{"random.py": "x = 1\n"}, status: 1, err: "consider renaming '/box/random.py'"},
	"traceback_exec":        {out: "<made up>", status: 1, err: "ZeroDivisionError"},
	"hooks":                 {out: "audit sys.excepthook", status: 1, err: "Error in sys.excepthook:"},
	"source":                {out: "# a comment"},
	"recursion":             {out: "maximum recursion depth exceeded", status: 1, err: "[Previous line repeated"},
	"nesting":               {out: "too many nested parentheses"},
	"faults":                {out: "Fatal Python error: Segmentation fault"},
	"warnings_default":      {files: map[string]string{"module_that_warns.py": "import warnings\nwarnings.warn('of a module')\nwarnings.warn('not shown', DeprecationWarning)\n'\\d'\n"}, out: "kept", err: "DeprecationWarning: old"},
}

// importCases are of modules, packages and archives.
var importCases = map[string]semantic{
	"inspect_module":             {files: packageFiles, out: "circular False", status: 1, err: "attempted relative import"},
	"compiled_modules":           {files: aModule, out: "['/box/compiled_modules.py', '/box/module.py']"},
	"compiled_modules elsewhere": {env: []string{"PYTHONDONTWRITEBYTECODE=", "PYTHONPYCACHEPREFIX=/tmp/cache"}, files: aModule, out: "'/tmp/cache/box/module.cpython-313.pyc'"},
	"zip_import":                 {out: "data in the archive", status: 1, err: "lib.zip/inzip/__init__.py"},
	"run_as_module":              {files: packageFiles, out: "package as __main__"},
	"sitecustomize_of_folder": {
		env:   []string{"PYTHONPATH=/box"},
		files: map[string]string{"sitecustomize.py": "import builtins, sys\nprint('sitecustomize', __name__, __file__, sys.argv)\nbuiltins.sitecustomize_seen = 1\n"},
		out:   "sitecustomize sitecustomize",
	},
	"user_site": {
		env: []string{"PYTHONUSERBASE=/box/user"},
		files: map[string]string{
			"user/lib/python3.13/site-packages/of_the_user.py": "x = 1\n",
			"user/lib/python3.13/site-packages/user.pth":       "/box/more\n",
			"more/in_more.py": "",
		},
		out: "/box/user/lib/python3.13/site-packages/of_the_user.py\n",
		known: []difference{
			{"stdout", "/box/user True\n/box/user/lib/python3.13/site-packages/of_the_user.py\n", "/box/user False\nNo module named 'of_the_user'\n"},
		},
	},
	"pickling": {out: "Color.RED", status: 1, err: "local.<locals>.Hidden"},
}

// runningCases are of processes, threads and signals.
var runningCases = map[string]semantic{
	"at_exit":                    {out: "main ends", status: 3, err: "registered last"},
	"threads":                    {out: "timer", err: "Exception in thread named:"},
	"asyncio_all":                {stdin: "one\ntwo\n", out: `b'OVER TCP\n'`, status: 1, err: "KeyError: 'the end'"},
	"signals":                    {out: "handled SIGALRM"},
	"processes":                  {stdin: "for the last child", out: "executed", status: 6, err: "the child's own end"},
	"left_behind":                {out: "left behind\nends\n", status: 2},
	"multiprocess by fork":       {args: []string{"fork"}, out: "failing 1\n", err: "Error: uncaught"},
	"multiprocess by spawn":      {args: []string{"spawn"}, out: "failing 1\n", err: "Error: uncaught"},
	"multiprocess by forkserver": {args: []string{"forkserver"}, out: "failing 1\n", err: "Error: uncaught"},
	"multiprocess_more":          {out: "[0, 2, 4, 6, 8]"},
}

// libraryCases are of modules that say what the program is, or that end it.
var libraryCases = map[string]semantic{
	"future":           {out: "matched 1", status: 1, err: "FrozenInstanceError"},
	"doctests":         {out: "***Test Failed***"},
	"unittests":        {out: "printed\n", status: 1, err: "Ran 5 tests in 0.000s"},
	"arguments_parsed": {args: []string{"--number", "x"}, out: "usage: arguments_parsed.py", status: 2, err: "invalid int value"},
	"logs":             {err: "UserWarning: captured"},
}

// exitCases are the ends of exits.py, by its argument.
var exitCases = map[string]semantic{
	"none":                {},
	"big":                 {status: 255},
	"string":              {status: 1, err: "ä going\n"},
	"object without text": {status: 1, err: "\n"},
	"nested":              {status: 3},
	"thread":              {out: "the end\n"},
	"atexit":              {status: 6, err: "SystemExit: 7"},
	"os._exit":            {status: 137},
	"os.abort":            {status: -int(syscall.SIGABRT)},
	"interrupt":           {status: -int(syscall.SIGINT), err: "KeyboardInterrupt\n"},
	"SIGTERM":             {status: -int(syscall.SIGTERM)},
	"SIGKILL":             {status: -int(syscall.SIGKILL)},
	"segmentation fault":  {status: -int(syscall.SIGSEGV)},
	"group":               {status: -int(syscall.SIGTERM)},
}

// sourceCases are sources that an editor or Git might alter.
var sourceCases = map[string]semantic{
	"nothing":                     {source: "", out: ""},
	"byte order mark":             {source: "\ufeff# coding: utf-8\nprint('ä', __file__)\n1/0\n", out: "ä", status: 1, err: "ZeroDivisionError"},
	"byte order mark and Latin-1": {source: "\ufeff# coding: latin-1\nprint('ä')\n", status: 1, err: "SyntaxError: encoding problem"},
	"Latin-1":                     {source: "# -*- coding: latin-1 -*-\nprint('\xe4\xf6', ascii('\xe4'))\nraise ValueError('\xfc', '\xe4'  +  1)\n", out: `äö '\xe4'`, status: 1, err: "TypeError"},
	"Latin-1 without a cookie":    {source: "print(1)\nprint('\xff')\n", status: 1, err: "SyntaxError"},
	"CRLF":                        {source: "x = '''a\r\nb'''\r\nprint(ascii(x))\r\nif 1:\r\n    1/0\r\n", out: `'a\nb'`, status: 1, err: "line 5"},
	"CR":                          {source: "x = '''a\rb'''\rprint(ascii(x))\rif 1:\r    1/0\r", out: `'a\nb'`, status: 1, err: "ZeroDivisionError"},
	"NUL":                         {source: "print(1)\nx = '\x00'\n", status: 1, err: "source code cannot contain null bytes"},
	"a very long line":            {source: "x = " + strings.Repeat("1 + ", 1000) + "1 + '" + strings.Repeat("ä", 100_000) + "'\n", status: 1, err: "TypeError"},
	"a syntax error":              {source: "x = 1\nprint(x\ny = = 2\n", status: 1, err: "SyntaxError: '(' was never closed"},
	"warnings of the compiler":    {source: "x = '\\d'\nx is 'a'\nassert (x, 1)\n1()\n", status: 1, err: "SyntaxWarning"},
}

// semanticCases are all cases by name.
func semanticCases(t *testing.T) map[string]semantic {
	all := map[string]semantic{
		"zip_import of a program": {source: zipApp(t), name: "app.pyz", args: []string{"x"}, out: "app.pyz/__main__.py", status: 1, err: "app.pyz/part.py"},
	}
	add := func(name string, s semantic) {
		if _, twice := all[name]; twice {
			t.Fatalf("two cases are called %q", name)
		}
		all[name] = s
	}
	for _, cases := range []map[string]semantic{objectCases, processCases, streamCases, errorCases, importCases, runningCases, libraryCases} {
		for name, s := range cases {
			if s.file == "" {
				s.file, _, _ = strings.Cut(name, " ")
			}
			add(name, s)
		}
	}
	for how, s := range exitCases {
		s.file, s.args, s.out = "exits", []string{how}, fmt.Sprintf("ends by %s\n%s", how, s.out)
		add("exits by "+how, s)
	}
	for name, s := range sourceCases {
		s.name = "main.py"
		add("source: "+name, s)
	}
	return all
}
