import ast, sys

for text in (
    "(" * 150 + ")" * 150,
    "(" * 250 + ")" * 250,
    "[" * 90 + "]" * 90,
    "-" * 300 + "1",
    "x" + ".a" * 1000,
    "1" + "+1" * 1000,
    "1" + "**1" * 300,
    "".join(" " * i + "if 1:\n" for i in range(101)) + " " * 101 + "pass",
    "".join(" " * i + "for i in x:\n" for i in range(22)) + " " * 22 + "pass",
    "f'{" * 160 + "}'" * 160,
    "lambda: " * 200 + "1",
    "-" * 100_000 + "1",
    "9" * 5000,
):
    try:
        print(len(text), type(compile(text, "<text>", "exec")).__name__)
    except BaseException as error:
        print(len(text), type(error).__name__, str(error)[:200])
print(type(ast.literal_eval("(" * 50 + ")" * 50)))
