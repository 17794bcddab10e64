import traceback


def f(x, y):
    return x["a"]["ä😀"][y] + 1


data = {"a": {"ä😀": [None]}}
for call in (
    lambda: f(data, 0),
    lambda: f(data,
              1),
    lambda: (1 +
             "x" *
             data),
    lambda:	data.a.b,
    lambda: "😀" + (data["a"]  ["none"]  ),
    lambda: print(*data, **{"sepp": 1}),
    lambda: [i for i in data for j in i()],
):
    try:
        call()
    except Exception:
        traceback.print_exc()
assert data == {}, f"""of
two lines {data}"""
