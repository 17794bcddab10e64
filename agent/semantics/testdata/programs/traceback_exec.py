import linecache

exec(compile("def f():\n    return 1 / 0\n", "<made up>", "exec"))
try:
    f()
except ZeroDivisionError as error:
    print(error.__traceback__.tb_next.tb_frame.f_code.co_filename, repr(linecache.getline("<made up>", 2)), repr(linecache.getline(__file__, 3)))
linecache.cache["<string>"] = (9, None, ["# nothing\n", "\n", "f()  # from the cache\n"], "<string>")
exec("\n\nf()")
